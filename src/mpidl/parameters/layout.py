"""Named slices of the flat parameter vector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from mpidl.parameters.ranges import Range


@dataclass(frozen=True, slots=True)
class Slice:
    """The place of a parameter tensor in the flat vector, in C order.

    Attributes
    ----------
    name
        Layer and tensor, such as ``"0-dense/weight"``.
    shape
        Shape of the tensor; ``()`` is a single element.
    start
        Index of its first element in the flat vector.
    """

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def stop(self) -> int:
        """Index one past its last element in the flat vector."""
        return self.start + self.size

    @property
    def range(self) -> Range:
        """Range of its elements in the flat vector."""
        return Range(self.start, self.stop)


class Layout:
    """The order, names and shapes of a model's parameter tensors in one flat vector.

    Parameters
    ----------
    shapes
        Name and shape of each tensor, in the order of the vector.

    Raises
    ------
    ValueError
        If two tensors have the same name, or a shape has a negative extent.

    Examples
    --------
    >>> layout = Layout([("0-dense/weight", (4, 3)), ("0-dense/bias", (3,))])
    >>> layout.size, layout["0-dense/bias"].range
    (15, Range(start=12, stop=15))
    """

    def __init__(self, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        self._by_name: dict[str, Slice] = {}
        self.size = 0
        for name, shape in shapes:
            if name in self._by_name:
                raise ValueError(f"two parameter tensors are named {name!r}")
            if any(extent < 0 for extent in shape):
                raise ValueError(f"parameter tensor {name!r} has the shape {tuple(shape)}")
            part = Slice(name, tuple(shape), self.size)
            self._by_name[name] = part
            self.size = part.stop
        self.slices = tuple(self._by_name.values())

    def __getitem__(self, name: str) -> Slice:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Slice]:
        return iter(self.slices)

    def __len__(self) -> int:
        return len(self.slices)

    def __eq__(self, other: object) -> bool:
        return self.slices == other.slices if isinstance(other, Layout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.slices)

    def __repr__(self) -> str:
        return f"Layout({[(part.name, part.shape) for part in self.slices]})"

    def views(self, vector: Any) -> dict[str, Any]:
        """Return each tensor as a view of a flat vector, never a copy.

        Parameters
        ----------
        vector
            NumPy or CuPy array of shape ``(size,)``, any dtype.

        Returns
        -------
        dict
            An array of the tensor's shape for each name.

        Raises
        ------
        ValueError
            If the vector's shape isn't ``(size,)``.
        """
        if vector.shape != (self.size,):
            raise ValueError(f"a vector of shape {vector.shape}, expected ({self.size},)")
        return {part.name: vector[part.start : part.stop].reshape(part.shape) for part in self.slices}
