"""Wire formats: pushes and fetches in fewer bytes, with error feedback."""

from mpidl.wire.bf16 import Bf16
from mpidl.wire.differences import Differences, encoded_bytes
from mpidl.wire.factors import Factored, Factors, Matrix, Packing
from mpidl.wire.feedback import ErrorFeedback
from mpidl.wire.formats import FACTORS, parse
from mpidl.wire.int8 import Int8
from mpidl.wire.onebit import OneBit
from mpidl.wire.topk import TopK
from mpidl.wire.wire import BLOCK, Wire
from mpidl.wire.with_origin import WithOrigin
from mpidl.wire.with_statistics import WithStatistics

__all__ = [
    "BLOCK",
    "FACTORS",
    "Bf16",
    "Differences",
    "ErrorFeedback",
    "Factored",
    "Factors",
    "Int8",
    "Matrix",
    "OneBit",
    "Packing",
    "TopK",
    "Wire",
    "WithOrigin",
    "WithStatistics",
    "encoded_bytes",
    "parse",
]
