"""Build dataclasses from the sections of a configuration, with errors of one line for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import inspect

from mpidl.errors import UsageError, nearest

__all__ = ["build", "check_keys", "check_table", "choose", "describe", "keys"]

T = TypeVar("T")


def keys(cls: type) -> list[str]:
    """Return the keys of a section that describes a dataclass: the names of the fields of `cls`."""
    return [field.name for field in dataclasses.fields(cls) if field.init]


def build(cls: type[T], section: str, values: Mapping[str, Any]) -> T:
    """Return an instance of `cls` made from the keys and values of a section.

    Parameters
    ----------
    cls : dataclass type
        Its annotations may contain `msgspec.Meta` bounds; fields without a default are required.
    section : str
        Name of the section in errors, such as ``"data"`` or ``"model.layer[2]"``.
    values : mapping
        The section, as a TOML parser returns it.

    Raises
    ------
    UsageError
        A key is unknown, a value has the wrong type or is out of bounds, or a required key is missing; or what `cls`
        itself raises, whose text starts with the name of the key.
    """
    check_table(section, values)
    check_keys(section, values, keys(cls))
    annotations = get_type_hints(cls, include_extras=True)
    converted = {key: _convert(value, annotations[key], f"{section}.{key}") for key, value in values.items()}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and required and field.name not in values:
            raise UsageError(f"{section}.{field.name}: missing, expected {describe(annotations[field.name])}")
    try:
        return cls(**converted)
    except UsageError as error:  # from __post_init__, which doesn't know the section
        raise UsageError(f"{section}.{error}") from None


def check_table(section: str, values: Any) -> None:
    """Raise UsageError unless `values` is a table."""
    if not isinstance(values, Mapping):
        raise UsageError(f"{section}: expected a section, [{section}], found {_found(values)}")


def check_keys(section: str, values: Mapping[str, Any], known: list[str]) -> None:
    """Raise UsageError for a key of `values` that is not in `known`; the error names the nearest known key."""
    for key in values:
        if key not in known:
            raise UsageError(f"{section}.{key}: unknown key{nearest(key, known)}")


def choose(registry: Mapping[str, T], key: str, name: Any) -> T:
    """Return what `registry` has under `name`, the value of a `key` such as ``"server.rule"``.

    Raises
    ------
    UsageError
        The registry has no such name; the error gives the nearest.
    """
    if not isinstance(name, str) or name not in registry:
        raise UsageError(f"{key}: unknown name {name!r}{nearest(str(name), list(registry))}")
    return registry[name]


def _convert(value: Any, annotation: Any, key: str) -> Any:
    if dataclasses.is_dataclass(annotation):
        return build(annotation, key, value)  # type: ignore[arg-type]
    not_a_number = isinstance(value, float) and value != value
    try:
        if not not_a_number:
            return msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        pass
    raise UsageError(f"{key}: expected {describe(annotation)}, found {_found(value)}")


def _found(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def describe(annotation: Any) -> str:
    """Return the values that an annotation allows, for people: ``"int >= 1"``, ``"'aligned' or 'literal'"``."""
    return _describe(inspect.type_info(annotation))


def _describe(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return _describe(kind.type)
    if isinstance(kind, inspect.UnionType):
        return " or ".join(_describe(each) for each in kind.types if not isinstance(each, inspect.NoneType))
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(map(repr, kind.values))
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return f"{'non-empty ' if kind.min_length else ''}list of {_describe(kind.item_type)}"
    if isinstance(kind, inspect.DictType):
        return "table"
    name = type(kind).__name__.removesuffix("Type").lower()
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        signs = ((">", kind.gt), (">=", kind.ge), ("<", kind.lt), ("<=", kind.le))
        bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)
        return f"{name} {bounds}".strip()
    if isinstance(kind, inspect.StrType) and kind.min_length:
        return "non-empty str"
    return name
