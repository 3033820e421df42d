"""Wire formats: pushes in fewer bytes, with error feedback."""

from mpidl.wire.bf16 import Bf16
from mpidl.wire.feedback import ErrorFeedback
from mpidl.wire.formats import parse
from mpidl.wire.onebit import OneBit
from mpidl.wire.topk import TopK
from mpidl.wire.wire import Wire
from mpidl.wire.with_origin import WithOrigin

__all__ = ["Bf16", "ErrorFeedback", "OneBit", "TopK", "Wire", "WithOrigin", "parse"]
