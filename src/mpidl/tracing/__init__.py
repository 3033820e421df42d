"""Timelines of runs: what each rank did, and when, in files of the run's directory."""

from mpidl.tracing.files import RankSpans, read
from mpidl.tracing.spans import KINDS

__all__ = ["KINDS", "RankSpans", "read"]
