"""Data that a user's function returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mpidl.data.dataset import Dataset, opened
from mpidl.data.indexed import Indexed
from mpidl.data.private import as_source
from mpidl.errors import UsageError, kind_of
from mpidl.functions import FunctionName, call, check_name
from mpidl.schema import Checked, Natural


@dataclass(frozen=True)
class Factory(Checked):
    """Data returned by a user's function; ``source`` needn't be given.

    Attributes
    ----------
    factory : str
        ``"module:function"``: a function without arguments that returns a `Dataset` or a source, such as `Indexed`, or
        a list with one for each worker. The module may be in the current directory.
    workers : int, optional
        Number of processes per training rank that make an `Indexed`'s batches, in place of its own number.
    """

    name: ClassVar[str] = "factory"
    factory: FunctionName
    workers: Natural | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("factory", self.factory)

    def open(self) -> Dataset:
        returned = call("data.factory", self.factory, "no arguments")
        data: Any = as_source(returned)
        where = f"{self.factory} returned {kind_of(returned)}"
        if isinstance(data, type) or not (isinstance(data, Dataset) or hasattr(data, "open")):
            raise UsageError(
                f"data.factory: {where}, expected a Dataset or a source, such as mpidl.Indexed(train, test)"
            )
        if self.workers is not None:
            if not isinstance(data, Indexed):
                raise UsageError(f"data.workers: {self.workers}, but {where}: only mpidl.Indexed has workers")
            data = replace(data, workers=self.workers)
        return opened(data)
