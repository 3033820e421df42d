"""Named slices of the flat parameter vector, and the copies that move them into other shards or another layout."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from msgspec import Struct

from mpidl.parameters.ranges import Box, Range, boxes


class Slice(Struct, frozen=True):
    """The position of a parameter tensor, or of a box of it, in the flat vector, in C order.

    Attributes
    ----------
    name
        Layer and tensor, such as ``"0-dense/weight"``.
    box
        The part of the tensor.
    start
        Index of its first element in the flat vector.
    """

    name: str
    box: Box
    start: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part; ``()`` is a single element."""
        return self.box.shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.box.size

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
        Name and shape of each tensor.
    pieces
        For a cut model, name and box of each part of the vector, in order; every element of every tensor is in one of
        them. By default, the whole tensors in the order of `shapes`.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        The shapes of the whole tensors.
    slices : tuple of Slice
        The pieces, in the order of the vector.
    size : int
        Number of elements.

    Raises
    ------
    ValueError
        Two tensors have the same name, a shape has a negative extent, or the pieces don't make up the tensors.

    Examples
    --------
    >>> layout = Layout([("0-dense/weight", (4, 3)), ("0-dense/bias", (3,))])
    >>> layout.size, layout["0-dense/bias"].range
    (15, Range(start=12, stop=15))
    """

    def __init__(
        self, shapes: Iterable[tuple[str, tuple[int, ...]]], pieces: Iterable[tuple[str, Box]] | None = None
    ) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, shape in shapes:
            if name in self.shapes:
                raise ValueError(f"two parameter tensors are named {name!r}")
            if any(extent < 0 for extent in shape):
                raise ValueError(f"parameter tensor {name!r} has the shape {tuple(shape)}")
            self.shapes[name] = tuple(shape)
        self._by_name: dict[str, list[Slice]] = {name: [] for name in self.shapes}
        self.size = 0
        whole = [(name, Box.whole(shape)) for name, shape in self.shapes.items()]
        slices = []
        for name, box in whole if pieces is None else pieces:
            if name not in self.shapes:
                raise ValueError(f"a piece of an unknown tensor {name!r}")
            slices.append(Slice(name, box, self.size))
            self._by_name[name].append(slices[-1])
            self.size = slices[-1].stop
        self.slices = tuple(slices)
        for name, shape in self.shapes.items():
            _check(name, shape, [part.box for part in self._by_name[name]])

    def of(self, name: str) -> tuple[Slice, ...]:
        """Return the pieces of a tensor, in the order of the vector."""
        return tuple(self._by_name[name])

    @property
    def uncut(self) -> Layout:
        """The same tensors, each in one piece."""
        return Layout(self.shapes.items())

    def within(self, range: Range) -> list[Slice]:
        """Return the boxes of tensors that make up a range of the vector, in order, each contiguous in C order."""
        found: list[Slice] = []
        for part in self.slices[bisect_right(self.slices, range.start, key=lambda part: part.stop) :]:
            if part.start >= range.stop:
                break
            if common := part.range.intersect(range):
                found += [
                    Slice(part.name, box.placed(part.box), common.start + covered.start)
                    for box, covered in boxes(part.shape, *common.shift(-part.start))
                ]
        return found

    def __getitem__(self, name: str) -> Slice:
        """Return the slice of a tensor that is one piece."""
        (part,) = self._by_name[name]
        return part

    def __iter__(self) -> Iterator[Slice]:
        return iter(self.slices)

    def __len__(self) -> int:
        return len(self.slices)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.shapes == other.shapes and self.slices == other.slices

    def __hash__(self) -> int:
        return hash(self.slices)

    def __repr__(self) -> str:
        return f"Layout({[(part.name, part.shape) for part in self.slices]})"

    def views(self, vector: Any) -> dict[str, Any]:
        """Return each tensor as a view of a flat vector of NumPy or CuPy, never a copy; each tensor must be one piece.

        Raise ValueError if the vector's shape isn't ``(size,)``.
        """
        if vector.shape != (self.size,):
            raise ValueError(f"a vector of shape {vector.shape}, expected ({self.size},)")
        return {part.name: vector[part.start : part.stop].reshape(part.shape) for part in self.slices}


def _check(name: str, shape: tuple[int, ...], pieces: list[Box]) -> None:
    """Raise ValueError if some boxes don't cover each element of an array exactly once.

    The number of boxes that cover each element is determined by its mixed differences. Those of a box are signs at its
    corners: the corners of all pieces must cancel out, except those of the whole, which takes linear time to check.
    """
    whole = Box.whole(shape)
    if pieces == [whole]:
        return
    fitting = all(
        len(box.ranges) == len(shape) and all(each.start <= each.stop for each in box.ranges) for box in pieces
    )
    if fitting:
        cut = [axis for axis, own in enumerate(whole.ranges) if any(box.ranges[axis] != own for box in pieces)]
        signs: Counter[tuple[int, ...]] = Counter()
        for factor, boxes_ in ((1, pieces), (-1, [whole])):
            for box in boxes_:
                for ends in product((0, 1), repeat=len(cut)):
                    corner = tuple(box.ranges[axis][end] for axis, end in zip(cut, ends, strict=True))
                    signs[corner] += factor * (-1) ** sum(ends)
        fitting = not any(signs.values())
    if not fitting:
        raise ValueError(f"parameter tensor {name!r} of shape {shape}: the pieces don't have each element once")


class Move(NamedTuple):
    """A copy of the box of a tensor between ranges of two flat vectors of the same tensors in different layouts.

    `source` and `target` are the contiguous boxes around it; their `start` counts from the beginning of the range.
    """

    box: Box
    source: Slice
    target: Slice

    def copy(self, source: Any, target: Any) -> None:
        """Copy between the arrays of the two ranges, of NumPy or CuPy."""
        around, into = (
            vector[part.start : part.stop].reshape(part.shape)
            for vector, part in ((source, self.source), (target, self.target))
        )
        into[self.box.slices(self.target.box)] = around[self.box.slices(self.source.box)]


def moves(old: Layout, held: Range, new: Layout, wanted: Range) -> Iterator[Move]:
    """Yield the copies of the elements that range `held` of `old`'s vector shares with range `wanted` of `new`'s."""
    targets: defaultdict[str, list[Slice]] = defaultdict(list)
    for part in new.within(wanted):
        targets[part.name].append(part)
    for source in old.within(held):
        for target in targets[source.name]:
            if common := source.box.intersect(target.box):
                yield Move(common, _shifted(source, -held.start), _shifted(target, -wanted.start))


def _shifted(part: Slice, by: int) -> Slice:
    return Slice(part.name, part.box, part.start + by)
