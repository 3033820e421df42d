"""TOML files: read with errors for people, and written (the standard library only reads)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpidl.errors import UsageError

__all__ = ["dump", "parse", "read"]


def read(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    UsageError
        No such file, not readable, or not TOML; the line says which file and where in it.
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
    """Return the TOML value that `text` stands for, or `text` itself where it is none (a bare string)."""
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return values["value"] if len(values) == 1 else text


def dump(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return `sections` as TOML text that `read` gives back: None is left out, tuples become arrays.

    An array of tables is written as ``[[section.key]]`` blocks after the other keys of its section.

    Raises
    ------
    TypeError
        A value that TOML has no form for.
    """
    blocks = []
    for section, values in sections.items():
        present = {key: value for key, value in values.items() if value is not None}
        tables = {key: value for key, value in present.items() if _is_array_of_tables(value)}
        plain = {key: value for key, value in present.items() if key not in tables}
        blocks.append(_block(f"[{section}]", plain))
        blocks += [_block(f"[[{section}.{_key(key)}]]", table) for key in tables for table in tables[key]]
    return "\n".join(blocks)


def _is_array_of_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(item, dict) for item in value)


def _block(header: str, values: Mapping[str, Any]) -> str:
    return "".join([f"{header}\n", *(f"{_key(key)} = {_value(value)}\n" for key, value in values.items())])


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())}}}"
    raise TypeError(f"no TOML form for {value!r}")


def _string(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
    return '"' + re.sub(r'["\\\x00-\x1f\x7f]', lambda m: escapes.get(m[0], f"\\u{ord(m[0]):04x}"), text) + '"'
