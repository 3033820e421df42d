"""What a module has in place of a table's weight while a model uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from mpidl.nn.adaptation import ModelError
from mpidl.tables.lookups import TableSpec

#: Takes ids and the one that is padding, if any; returns the ids' places in some rows, these, and the padding's place.
LookUp = Callable[["TableWeight", torch.Tensor, int | None], tuple[torch.Tensor, torch.Tensor, int | None]]


class TableWeight:
    """Stands for the weight of a table: PyTorch's functions of embeddings compute with the rows that `look_up` returns.

    Parameters
    ----------
    spec : TableSpec
    number : int
        The table's number among the model's.
    weight : torch.nn.Parameter
        What it stands for.
    look_up : callable

    Attributes
    ----------
    shape, dtype, requires_grad
        Those of the weight.
    device : torch.device
        Where the model computes.
    allocated : bool
        Whether the weight has, or had, memory for all of its values.
    """

    def __init__(self, spec: TableSpec, number: int, weight: torch.nn.Parameter, look_up: LookUp) -> None:
        self.spec, self.number, self.weight, self.look_up = spec, number, weight, look_up
        assert spec.rows is not None
        self.shape = torch.Size((spec.rows, spec.dimension))  # the weight's memory may have been freed
        self.dtype, self.requires_grad = weight.dtype, weight.requires_grad
        self.device = torch.device("cpu")
        self.allocated = not weight.is_meta and 0 not in weight.stride()

    def __deepcopy__(self, memo: dict[int, Any]) -> TableWeight:
        return self

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{_found(self)}, which has no attribute {name}")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        weight = next(each for each in (*args, *options.values()) if isinstance(each, cls))
        if function not in (functional.embedding, functional.embedding_bag) or args[1] is not weight:
            expected = "expected torch.nn.functional.embedding or embedding_bag"
            raise ModelError(f"{_found(weight)}: {getattr(function, '__name__', function)} can't have it, {expected}")
        for name in ("max_norm", "scale_grad_by_freq"):
            if options.get(name):
                raise ModelError(f"{_found(weight)}: {name}={options[name]} isn't possible there, expected none")
        places, rows, padding = weight.look_up(weight, args[0], options.get("padding_idx"))
        return function(places, rows, *args[2:], **{**options, "sparse": False, "padding_idx": padding})


def _found(weight: TableWeight) -> str:
    return f"{weight.spec.name} is a table on the servers (sparse=True)"
