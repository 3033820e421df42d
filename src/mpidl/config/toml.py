"""TOML files: read with errors for people, and written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from mpidl.errors import UsageError

__all__ = ["dump", "parse", "read"]


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    UsageError
        The file doesn't exist, can't be read or is not TOML; the line says which file and where in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text, expected a TOML file") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", message)
        line = at[1] if at and at[1] else text.rstrip().count("\n") + 1
        what = message[: at.start()] if at else message
        raise UsageError(f"{path}, line {line}: {what[:1].lower()}{what[1:]}") from None


def parse(text: str) -> Any:
    """Return the TOML value that `text` stands for, or `text` itself where it stands for none: a bare string."""
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return values["value"] if len(values) == 1 else text


def dump(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return `sections` as TOML text that `read` gives back: None is left out, tuples become arrays.

    Raises
    ------
    TypeError
        A value can't be written as TOML.
    """
    return tomli_w.dumps(_without_none(sections))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
