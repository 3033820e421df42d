"""Wire formats: how a push travels in fewer bytes, and what is left out comes with the next push."""

from mpidl.wire.wire import ErrorFeedback, Wire, parse

__all__ = ["ErrorFeedback", "Wire", "parse"]
