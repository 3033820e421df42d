"""Wire formats: pushes and fetches in fewer bytes, with error feedback."""

from mpidl.wire.bf16 import Bf16
from mpidl.wire.feedback import Differences, ErrorFeedback, encoded_bytes
from mpidl.wire.formats import FORMATS, parse
from mpidl.wire.int8 import Int8
from mpidl.wire.onebit import OneBit
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
