"""Rows of cases, where a full product of values would notice no more, and those of them that are tested rarely."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pytest


def in_turn(names: Iterable[object], values: Sequence[tuple[object, ...]], each: int = 1) -> list[tuple[object, ...]]:
    """Return rows for ``parametrize``: every name with `each` of the tuples of values, which take turns."""
    return [
        (name, *values[(number * each + turn) % len(values)])
        for number, name in enumerate(names)
        for turn in range(each)
    ]


def long_but(chosen: Collection[object], names: Iterable[object]) -> list[object]:
    """Return parameters for ``parametrize``, all but those chosen marked ``long``."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.long) for name in names]
