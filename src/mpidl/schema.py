"""Sections of a configuration in TOML, and dataclasses built from them with one-line errors."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from os import PathLike, fspath
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from mpidl.errors import UsageError, nearest, quoted, shown

T = TypeVar("T")

#: Numbers within bounds, for annotations of fields.
Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]

#: The path of a file or a directory, for annotations of fields; in a script it may be a `pathlib.Path`.
FilePath = Annotated[str, Meta(min_length=1, extra={"path": True})]

#: Largest integer of TOML, HDF5 and NumPy.
LARGEST = (1 << 63) - 1


class Checked:
    """A base class of dataclasses whose constructor checks its arguments as `build` does.

    A value is converted to its field's annotation: an integer to a float, a path to a string, NumPy's numbers to
    Python's. A default is not converted. A subclass with its own ``__post_init__`` calls this one first.

    Raises
    ------
    UsageError
        An argument is unknown, or a value has the wrong type or is out of bounds.
    """

    def __new__(cls, *_: Any, **keywords: Any) -> Self:
        if "__dataclass_fields__" in vars(cls):
            known = keys(cls)
            if not keywords.keys() <= {*known}:
                check_keys(cls.__name__, keywords, known, _relatives(cls))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, (annotation, default) in _fields(cls).items():
            value = getattr(self, name)
            if value is not default:
                object.__setattr__(self, name, convert(value, annotation, f"{cls.__name__}.{name}"))


@cache
def _fields(cls: Any) -> dict[str, tuple[Any, Any]]:
    """Return the annotation and the default of each field in a dataclass's constructor."""
    annotations = get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)
    return {field.name: (annotations[field.name], field.default) for field in fields if field.init}


#: A key that nests more than 64 tables: the memory that tomllib needs for one grows with the square of its parts.
_PART = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')"""
_NESTED = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{64}}")


#: What decoding JSON raises; msgspec's errors are ValueErrors only since 0.21.
MALFORMED = (ValueError, msgspec.MsgspecError, RecursionError)


class BeyondPythonError(ValueError):
    """A valid TOML document that Python can't represent."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML document, which can be written as text again.

    Raise tomllib.TOMLDecodeError if it is none, and BeyondPythonError if it is nested too deeply or has too large
    integers.
    """
    try:
        if _NESTED.search(text):
            raise RecursionError
        values = tomllib.loads(text)
        repr(values)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise BeyondPythonError("tables or arrays are nested too deeply") from None
    except ValueError:
        raise BeyondPythonError("an integer has too many digits, expected at most 64 bits") from None
    return values


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
        A key is unknown, a value has the wrong type or is out of bounds, or a required key is missing; or an error of
        `cls` itself, which begins with the name of the key.
    """
    check_table(section, values)
    check_keys(section, values, keys(cls))
    fields: Any = _fields(cls)  # type: ignore[arg-type]
    annotations = {key: annotation for key, (annotation, _) in fields.items()}
    converted = {key: convert(value, annotations[key], f"{section}.{key}") for key, value in values.items()}
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


def check_keys(
    section: str, values: Mapping[str, Any], known: list[str], others: Mapping[str, type] | None = None
) -> None:
    """Raise UsageError for a key of `values` that is not in `known`.

    The error names the `others`, classes that could be meant, with this key, or else the nearest known key.
    """
    for key in values:
        if key not in known:
            owners = [name for name, cls in (others or {}).items() if key in keys(cls)]
            hint = f"; it belongs to {', '.join(owners)}" if owners else nearest(key, known)
            raise UsageError(f"{section}.{shown(key)}: unknown key{hint}")


def _relatives(cls: type[Checked]) -> dict[str, type]:
    """Return the classes with a name in a configuration that share a base class, such as `Rule`, with one of them."""
    found, waiting = (
        {},
        [next(base for base in reversed(cls.__mro__) if issubclass(base, Checked) and base is not Checked)],
    )
    while waiting:
        each = waiting.pop(0)
        waiting += each.__subclasses__()
        if {"name", "type"} & vars(each).keys():
            found[each.__name__] = each
    return found


def choose(registry: Mapping[str, T], key: str, name: Any) -> T:
    """Return the entry of `registry` for `name`, the value of a `key` such as ``"server.rule"``.

    Raise UsageError if the registry has no such name; the error suggests the nearest.
    """
    if not isinstance(name, str) or name not in registry:
        raise UsageError(f"{key}: unknown name {_found(name)}{nearest(str(name), list(registry))}")
    return registry[name]


def convert(value: Any, annotation: Any, key: str) -> Any:
    """Return `value` as the type of an annotation, which may contain `msgspec.Meta` bounds and dataclasses.

    Raise UsageError if it has another type or is out of bounds.

    Parameters
    ----------
    value : any
        From a TOML parser or a Python script.
    key : str
        Name of the value in errors, such as ``"data.batch"``.
    """
    if dataclasses.is_dataclass(annotation):
        return value if isinstance(value, annotation) else build(annotation, key, value)  # type: ignore[arg-type]
    if get_origin(annotation) is tuple and isinstance(value, list | tuple):
        inner = get_args(annotation)[0]
        if dataclasses.is_dataclass(inner):
            return tuple(convert(each, inner, f"{key}[{number}]") for number, each in enumerate(value))
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, PathLike):
        value = fspath(value)
    try:
        if _in_toml(value):
            return msgspec.convert(value, annotation)
    except (msgspec.ValidationError, OverflowError):
        pass
    raise UsageError(f"{key}: expected {describe(annotation)}, found {_found(value)}")


def whole(value: float, key: str) -> int:
    """Return a number such as 1e6, a float in TOML, as an integer of at least 1; raise UsageError for any other."""
    if not (1 <= value <= LARGEST and int(value) == value):
        raise UsageError(f"{key}: {value:g}, expected a whole number from 1 to 2**63 - 1")
    return int(value)


def _in_toml(value: Any) -> bool:
    """Tell whether a value or list has no NaN, no integer larger than `LARGEST` and no text without an encoding."""
    if isinstance(value, list | tuple):
        return all(map(_in_toml, value))
    if isinstance(value, int):
        return -LARGEST <= value <= LARGEST
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    return not isinstance(value, float) or value == value


def _found(value: Any) -> str:
    if isinstance(value, int | str) and not _in_toml(value):
        return "an integer of more than 64 bits" if isinstance(value, int) else f"{quoted(value)}, which is not UTF-8"
    return quoted(value)


def describe(annotation: Any) -> str:
    """Return the values allowed by an annotation as text: ``"int >= 1"``, ``"'aligned' or 'literal'"``."""
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
