"""The tensors of a module beside the vector: those that training leaves alone, and what the module changes itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
import xxhash

from mpidl.torch.vector import Parts, Place, buffers_in, parameters_in

Kind = Literal["constant", "counter", "private"]


class Beside:
    """The tensors of a module beside the vector.

    Its constants are frozen parameters, and float buffers that can't be averaged: of another dtype than the trained
    parameters, or infinite, such as masks. Its counters are the other buffers. Its private tensors are those that its
    ``state_dict`` lacks: buffers with ``persistent=False``.

    Parameters
    ----------
    parts : mapping of str to torch.nn.Module
    names : collection of str
        Names of tensors in the vector.
    """

    def __init__(self, parts: Parts, names: Collection[str]) -> None:
        self._parts = parts
        self._kinds: dict[str, Kind] = {}
        for place in self._all():
            if place.name not in names:
                floats = place.tensor.is_floating_point()
                self._kinds[place.name] = "private" if not place.saved else "constant" if floats else "counter"
        self._begun: dict[str, bytes] | None = None
        self._loaded = set[str]()

    def _all(self) -> list[Place]:
        return [*parameters_in(self._parts), *buffers_in(self._parts)]

    def _places(self, kind: Kind | None = None) -> Iterator[Place]:
        """Yield the present places: the module may have assigned tensors and modules anew."""
        for place in self._all():
            if (own := self._kinds.get(place.name)) is not None and kind in (None, own):
                yield place

    def begin(self) -> None:
        """Note the values with which training begins; only the first call does something."""
        if self._begun is None:
            kept = (place for place in self._places() if self._kinds[place.name] != "counter")
            self._begun = {place.name: _digest(place.tensor) for place in kept}

    def _changed(self, place: Place) -> bool:
        """Whether the module, or a checkpoint, has changed a tensor since training began."""
        return place.name in self._loaded or (
            self._begun is not None and _digest(place.tensor) != self._begun.get(place.name)
        )

    def constants(self) -> dict[str, np.ndarray]:
        """Return the constants' values by name."""
        return {place.name: as_array(place.tensor) for place in self._places("constant")}

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the values of the counters, and of the constants that the module has changed."""
        changed = [place for place in self._places("constant") if self._changed(place)]
        return {place.name: as_array(place.tensor) for place in (*self._places("counter"), *changed)}

    def private(self) -> dict[str, np.ndarray]:
        """Return the values of the private tensors, while training only of those that the module has changed."""
        places = [each for each in self._places("private") if self._begun is None or self._changed(each)]
        return {place.name: as_array(place.tensor) for place in places}

    def load(self, values: Mapping[str, Any], *, changed: bool = True) -> None:
        """Copy values into the tensors of their names, as `changed` ones or as those to begin with."""
        for place in self._places():
            if place.name in values:
                assign(place.tensor, torch.as_tensor(values[place.name]))
        if changed:
            self._loaded |= values.keys()


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor in the host's memory."""
    values = tensor.detach().cpu()
    array: np.ndarray = (values.float() if values.dtype is torch.bfloat16 else values).numpy()
    return array.copy()


def _digest(tensor: torch.Tensor) -> bytes:
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return xxhash.xxh3_128_digest(values.numpy())


def assign(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Give a tensor values, which may have another shape; an expanded one gets memory of its own."""
    if tensor.shape == values.shape and 0 not in tensor.stride():
        with torch.no_grad():
            tensor.copy_(values)
    else:
        tensor.data = values.to(tensor.device, tensor.dtype, copy=True)
