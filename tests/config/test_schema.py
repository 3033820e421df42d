"""From a section to a dataclass."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from mpidl.errors import UsageError
from mpidl.schema import build, describe, keys


@dataclass
class Example:
    plain: float
    numbers: list[int] = field(default_factory=list)
    made: int = field(default=3, init=False)


def test_build():
    example = build(Example, "example", {"plain": 1, "numbers": [2]})
    assert (example.plain, example.numbers, example.made) == (1.0, [2], 3)
    assert isinstance(example.plain, float)
    assert keys(Example) == ["plain", "numbers"]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "example.plain: missing, expected float"),
        ({"plain": float("nan")}, "example.plain: expected float, found nan"),
        ({"plain": 1, "numbers": [1, "a"]}, "example.numbers: expected list of int, found [1, 'a']"),
        ({"plain": 1, "made": 3}, "example.made: unknown key; known: numbers, plain"),
        (3, "example: expected a section, [example], found 3"),
    ],
)
def test_what_is_wrong(values, line):
    with pytest.raises(UsageError) as error:
        build(Example, "example", values)
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Annotated[int, Meta(ge=1)] | None, "int >= 1"),
        (Annotated[float, Meta(gt=0, le=0.5)], "float > 0 and <= 0.5"),
        (Literal["a", "b"], "'a' or 'b'"),
        (int | str, "int or str"),
        (Annotated[str, Meta(min_length=1)], "non-empty str"),
        (Annotated[tuple[int, ...], Meta(min_length=1)], "non-empty list of int"),
        (list[dict[str, Any]], "list of table"),
        (bool, "bool"),
    ],
)
def test_describe(annotation, text):
    assert describe(annotation) == text
