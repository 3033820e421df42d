"""Numbers and tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence

PREFIXES = ("", "k", "M", "G", "T", "P")


def quantity(value: float, unit: str) -> str:
    """Return a quantity with three digits and a decimal prefix, such as ``"167 MB"``."""
    power = 0
    while abs(value) >= 999.5 and power < len(PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.3g} {PREFIXES[power]}{unit}".rstrip()


def duration(seconds: float) -> str:
    """Return a duration with three digits, such as ``"1.5 ms"``."""
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def size(parameters: int, nbytes: int) -> str:
    """Return the size of a model as text, such as ``"41,777,152 parameters (167 MB)"``."""
    return f"{parameters:,} parameter{'s' * (parameters != 1)} ({quantity(nbytes, 'B')})"


def table(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return rows of cells as lines of text, the first `left` columns aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
