"""TOML files: reading with one-line errors, writing and changing."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from mpidl.errors import UsageError
from mpidl.paths import read_text, whole
from mpidl.schema import BeyondPythonError, parse_toml


def read(path: Path, of_run: bool = False) -> dict[str, Any]:
    """Read a TOML file, which may be that of a run (see `mpidl.paths.read_text`).

    Raise UsageError if the file doesn't exist, can't be read or is not TOML; the error names the file and the line.
    """
    try:
        text = read_text(path, of_run).decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text, expected a TOML file") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        return parse_toml(text)
    except BeyondPythonError as error:
        raise UsageError(f"{path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
        line = at[1] if at and at[1] else text.rstrip().count("\n") + 1
        what = message[: at.start()] if at else message
        raise UsageError(f"{path}, line {line}: {what[:1].lower()}{what[1:]}") from None


def parse(text: str) -> Any:
    """Return the TOML value of `text`, or, if it is none, `text` itself as a bare string."""
    try:
        values = parse_toml(f"value = {text}")
    except BeyondPythonError as error:
        raise UsageError(f"--set: {error}") from None
    except tomllib.TOMLDecodeError:
        return text
    return values["value"] if len(values) == 1 else text


def dump(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return `sections` as TOML text that `read` accepts: None is left out, tuples become arrays.

    Raise TypeError if a value can't be written as TOML.
    """
    return tomli_w.dumps(_without_none(sections))


def change(path: Path, section: str, values: Mapping[str, Any]) -> None:
    """Set keys of a section of a TOML file without changing its other lines and comments.

    Raise UsageError if the file can't be read, is not TOML, or can't be written.
    """
    import tomlkit

    read(path)
    document = tomlkit.parse(read_text(path).decode())
    if section not in document:
        document[section] = tomlkit.table()
    document[section].update(values)
    file = path.resolve()
    with whole(file) as partial:
        partial.write_bytes(tomlkit.dumps(document).encode())
        shutil.copymode(file, partial)


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
