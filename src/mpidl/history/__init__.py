"""The runs on disk, for Python: their files as values and columns."""

from mpidl.history.columns import Columns
from mpidl.history.run import Run, open

__all__ = ["Columns", "Run", "open"]
