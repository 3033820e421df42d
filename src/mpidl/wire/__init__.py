"""Wire formats: pushes and fetches in fewer bytes, with error feedback."""

from __future__ import annotations

from mpidl.errors import UsageError, quoted
from mpidl.wire.feedback import Differences, ErrorFeedback, encoded_bytes
from mpidl.wire.quantisation import Bf16, Int8, OneBit
from mpidl.wire.topk import TopK
from mpidl.wire.wire import BLOCK, Wire, WithOrigin, WithStatistics

__all__ = [
    "BLOCK",
    "FORMATS",
    "Bf16",
    "Differences",
    "ErrorFeedback",
    "Int8",
    "OneBit",
    "TopK",
    "Wire",
    "WithOrigin",
    "WithStatistics",
    "encoded_bytes",
    "parse",
]

#: Formats from the least to the most lossy. "topk:FRACTION" loses less than "onebit", but takes several times as long.
FORMATS = ("fp32", "bf16", "int8", "onebit")
#: Formats without an argument.
SIMPLE: dict[str, type[Wire]] = {each.name: each for each in (Bf16, Int8, OneBit)}


def parse(text: str, key: str = "wire") -> Wire | None:
    """Return the wire format named by `key`, or None for "fp32", which encodes nothing.

    Raise UsageError if there is no such format.
    """
    if text == "auto":
        raise UsageError(f"{key}: 'auto' is gone, `mpidl plan CONFIG --ranks N` recommends a format")
    if text == "fp32":
        return None
    if text in SIMPLE:
        return SIMPLE[text]()
    name, _, argument = text.partition(":")
    if name == "topk":
        try:
            fraction = float(argument)
        except ValueError:
            fraction = 0.0
        if 0 < fraction <= 1:
            return TopK(fraction, text)
    raise UsageError(
        f"{key}: {quoted(text)}, expected 'fp32', 'bf16', 'int8', 'topk:FRACTION' with 0 < FRACTION <= 1, or 'onebit'"
    )
