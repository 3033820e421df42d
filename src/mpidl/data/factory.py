"""Data that a function of the user's own returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import msgspec

from mpidl.data.dataset import Dataset, opened
from mpidl.data.indexed import Indexed
from mpidl.errors import UsageError, kind_of
from mpidl.functions import call, check_name
from mpidl.schema import Checked


@dataclass(frozen=True)
class Factory(Checked):
    """Data of one's own: what a function returns. ``factory`` alone says it; ``source`` needn't be given.

    Attributes
    ----------
    factory : str
        ``"module:function"``; the function takes nothing and returns a `Dataset` or a source, such as `Indexed`. The
        module may lie in the current directory.
    workers : int, optional
        Number of processes that make an `Indexed`'s batches, for each rank that trains; as it says itself by default.
    """

    name: ClassVar[str] = "factory"
    factory: str
    workers: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("factory", self.factory)

    def open(self) -> Dataset:
        data = call("data.factory", self.factory, "no arguments")
        where = f"{self.factory} returned {kind_of(data)}"
        if isinstance(data, type) or not (isinstance(data, Dataset) or hasattr(data, "open")):
            raise UsageError(
                f"data.factory: {where}, expected a Dataset or a source, such as mpidl.Indexed(train, test)"
            )
        if self.workers is not None:
            if not isinstance(data, Indexed):
                raise UsageError(f"data.workers: {self.workers}, but {where}: only mpidl.Indexed has workers")
            data = replace(data, workers=self.workers)
        return opened(data)
