"""Descriptions of a configuration's keys, from docstrings and annotations. Needs no Sphinx."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, is_dataclass
from typing import Any, get_args, get_type_hints

from mpidl.schema import describe

#: Sections of a NumPy docstring that describe keys.
KEYS = ("Parameters", "Attributes")
HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
ENTRY = re.compile(r"^(?P<names>\w+(?:, \w+)*)(?: ?:.*)?$")


@dataclass(frozen=True)
class Key:
    """One row of a table: keys that share a description.

    Attributes
    ----------
    names : tuple of str
    values : str
        The values that the keys accept, as in error messages.
    default : str
        As TOML; "required" for a key without a default, empty for None.
    description : str
        From the docstring, on one line; empty if it has none.
    """

    names: tuple[str, ...]
    values: str
    default: str
    description: str


def keys(cls: type, leave_out: type | None = None) -> list[Key]:
    """Return the keys of a dataclass in their order, without those of the base class `leave_out`."""
    known = descriptions(cls)
    annotations = get_type_hints(cls, include_extras=True)
    base = {field.name for field in dataclasses.fields(leave_out)} if leave_out else set()
    rows: list[Key] = []
    for field in dataclasses.fields(cls):
        if not field.init or field.name in base:
            continue
        description = known.get(field.name, "")
        key = Key((field.name,), _values(annotations[field.name]), _default(field), description)
        if rows and description and rows[-1] == dataclasses.replace(key, names=rows[-1].names):
            rows[-1] = dataclasses.replace(key, names=(*rows[-1].names, *key.names))
        else:
            rows.append(key)
    return rows


def subsections(cls: type) -> Iterator[tuple[str, type, bool]]:
    """Yield name and class of each key that is a section itself, and whether it may be repeated."""
    for name, annotation in get_type_hints(cls).items():
        if is_dataclass(annotation):
            yield name, annotation, False
        elif get_args(annotation) and is_dataclass(get_args(annotation)[0]):
            yield name, get_args(annotation)[0], True


def descriptions(cls: type) -> dict[str, str]:
    """Return the description of each key in the docstrings of a class and its bases, on one line."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for heading, body in sections(base):
            if heading in KEYS:
                found |= _entries(body)
    return found


def prose(cls: type) -> str:
    """Return a class's docstring as reStructuredText, without its sections on keys."""
    parts = []
    for heading, body in sections(cls):
        if heading not in KEYS:
            parts.append(f".. rubric:: {heading}\n\n{body}" if heading else body)
    return "\n\n".join(parts)


def sections(cls: type) -> Iterator[tuple[str, str]]:
    """Yield heading and body of each section of a class's own docstring; the first has no heading."""
    text = escape(inspect.cleandoc(cls.__dict__.get("__doc__") or ""))
    first, *others = HEADING.split(text)
    yield "", first.strip()
    yield from zip(others[::2], (body.strip("\n") for body in others[1::2]), strict=True)


def escape(text: str) -> str:
    """Return a docstring in which a shape (n, *shape), |x| and "S. Ioffe" are text, not markup."""
    text = re.sub(r"^(\s*[A-Z])\. ", r"\1\\. ", text, flags=re.MULTILINE)
    parts = re.split(r"(``.*?``)", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"((?<=, )\*|\|)(?=\w)", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _entries(body: str) -> dict[str, str]:
    found: dict[str, str] = {}
    names: list[str] = []
    for line in body.splitlines():
        if line[:1].strip():
            entry = ENTRY.match(line)
            names = entry["names"].split(", ") if entry else []
        elif line.strip():
            found |= {name: f"{found.get(name, '')} {line.strip()}".strip() for name in names}
    return found


def _values(annotation: Any) -> str:
    if is_dataclass(annotation):
        return "section"
    if get_args(annotation) and is_dataclass(get_args(annotation)[0]):
        return "sections"
    return describe(annotation).replace("'", '"')


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is MISSING:
        return "" if field.default_factory is not MISSING else "required"
    return "" if field.default in (None, ()) else _toml(field.default)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)
