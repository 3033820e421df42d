"""Gradients of weights as sufficient factors: the inputs of a dense layer, and the gradient of its outputs.

The gradient of a weight (rows, columns) for n samples is ``inputs.T @ output_gradient``. The factors have
n (rows + columns) elements, often fewer than the product, which the server computes then. Nothing is lost but rounding.

References
----------
T. Chilimbi et al. (2014), Project Adam: building an efficient and scalable deep learning training system, section 3.3;
P. Xie et al. (2016), Lighter-communication distributed machine learning via sufficient factor broadcasting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from mpidl.parameters.ranges import Range

#: Factors begin at multiples of so many bytes.
ALIGNMENT = 64


class Matrix(NamedTuple):
    """A weight (rows, columns) in a flat vector, whose gradient has factors.

    Attributes
    ----------
    start : int
        Its first element.
    rows, columns : int
        The inputs and the outputs of its layer.
    """

    start: int
    rows: int
    columns: int

    @property
    def range(self) -> Range:
        """Its elements."""
        return Range(self.start, self.start + self.rows * self.columns)


class Factored(NamedTuple):
    """What of a model's gradient has factors.

    Attributes
    ----------
    matrices : sequence of Matrix
        In the order of the vector.
    samples : int
        The most samples of a minibatch.
    """

    matrices: Sequence[Matrix]
    samples: int


class Factors(NamedTuple):
    """The factors of a layer's gradient.

    Attributes
    ----------
    samples : int
        Number of samples in the minibatch, n.
    inputs : array (n, rows) or None
        None for a layer without such a weight.
    output_gradient : array (n, columns) or None
    """

    samples: int
    inputs: Any = None
    output_gradient: Any = None


class Part(NamedTuple):
    """A part of a shard that travels as factors, or as it is.

    Attributes
    ----------
    range : Range
        Its elements, counted from the beginning of the shard.
    matrix : Matrix or None
        The weight of which it is a part, counted likewise; None for what travels as it is.
    """

    range: Range
    matrix: Matrix | None

    @property
    def rows(self) -> Range:
        """The rows of the weight of which it has elements."""
        assert self.matrix is not None
        first, last = self.range.start - self.matrix.start, self.range.stop - 1 - self.matrix.start
        return Range(first // self.matrix.columns, last // self.matrix.columns + 1)

    def elements(self, samples: int) -> int:
        """Return how many numbers travel for a gradient of so many samples."""
        return self.range.size if self.matrix is None else samples * (self.rows.size + self.matrix.columns)


class Packing:
    """How a push to one shard travels in factors: as many pieces of bytes as the shard has chunks, all of one length.

    The parts of the shard follow each other in its order and end with the last piece, so that what back-propagation
    computes first travels first.

    Parameters
    ----------
    shard : Range
    chunk : int
        Elements of a chunk.
    factored : Factored
    dtype : dtype

    Attributes
    ----------
    parts : list of Part
    samples : int
        The most samples of a minibatch.
    size : int
        Elements of the shard.
    chunks, piece : int
        Number of the pieces, and bytes of each.
    """

    def __init__(self, shard: Range, chunk: int, factored: Factored, dtype: Any) -> None:
        self.samples, self._shard, self._chunk, self._dtype = factored.samples, shard, chunk, np.dtype(dtype)
        self.parts = _parts(shard, factored)
        self.size, self.chunks = shard.size, -(-shard.size // chunk)
        whole = sum(self._nbytes(part, self.samples) for part in self.parts)
        self.piece = -(-whole // self.chunks // ALIGNMENT) * ALIGNMENT
        # For each chunk, the first part of which it has elements.
        starts = [part.range.start for part in self.parts]
        self._first = [bisect_right(starts, number * chunk) - 1 for number in range(self.chunks)]
        self.places = cache(self._places)
        self.ready = cache(self._ready)

    @property
    def nbytes(self) -> int:
        """Bytes of a push."""
        return self.chunks * self.piece

    @cached_property
    def factored(self) -> list[Range]:
        """The ranges of the whole vector that travel as factors."""
        return [part.range.shift(self._shard.start) for part in self.parts if part.matrix is not None]

    def _nbytes(self, part: Part, samples: int) -> int:
        itemsize: int = self._dtype.itemsize
        return -(-part.elements(samples) * itemsize // ALIGNMENT) * ALIGNMENT

    def _places(self, samples: int) -> list[int]:
        """Return the first byte of each part in a push of so many samples."""
        places, start = [], self.nbytes
        for part in reversed(self.parts):
            start -= self._nbytes(part, samples)
            places.append(start)
        return places[::-1]

    def _ready(self, samples: int) -> list[int]:
        """Return for each number of pieces how many chunks, from the last on, can be computed once so many are here."""
        places = self.places(samples)
        needed = [places[first] for first in reversed(self._first)]
        return [sum(byte >= (self.chunks - here) * self.piece for byte in needed) for here in range(self.chunks + 1)]

    def pack(self, number: int, values: Any, factors: Factors, data: np.ndarray) -> None:
        """Write a part of a push into its place.

        Parameters
        ----------
        number : int
            Number of the part.
        values : array (shard size,)
            The gradient; unused for a part that travels as factors.
        factors : Factors
            The factors of the part's layer.
        data : array of uint8 (nbytes,)
            The whole push.
        """
        part, start = self.parts[number], self.places(factors.samples)[number]
        if part.matrix is None:
            self._view(data, start, part.range.size)[:] = values[slice(*part.range)]
            return
        inputs, output_gradient = self._factors(part, factors.samples, start, data)
        inputs[...] = factors.inputs[:, slice(*part.rows)]
        output_gradient[...] = factors.output_gradient

    def unpack(self, chunk: int, samples: int, data: np.ndarray, values: np.ndarray) -> None:
        """Compute a chunk of the gradient from a push of so many samples.

        Parameters
        ----------
        chunk : int
            Its number.
        samples : int
        data : array of uint8 (nbytes,)
            What has arrived of the push; see `ready`.
        values : array (n,)
            Overwritten with the chunk's elements.
        """
        own, places = Range(0, values.size).shift(chunk * self._chunk), self.places(samples)
        for number in range(self._first[chunk], len(self.parts)):
            part, start = self.parts[number], places[number]
            here = own.intersect(part.range)
            if here is None:
                return
            out = values[slice(*here.shift(-own.start))]
            if part.matrix is None:
                first = here.start - part.range.start
                out[:] = self._view(data, start, part.range.size)[first : first + here.size]
                continue
            inputs, output_gradient = self._factors(part, samples, start, data)
            skipped = part.matrix.start + part.rows.start * part.matrix.columns
            _multiply(inputs, output_gradient, here.start - skipped, out)

    def _view(self, data: np.ndarray, start: int, elements: int) -> np.ndarray:
        view: np.ndarray = data[start : start + elements * self._dtype.itemsize].view(self._dtype)
        return view

    def _factors(self, part: Part, samples: int, start: int, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors of a part as they lie in a push: (samples, rows) and (samples, columns)."""
        assert part.matrix is not None
        rows, columns = part.rows.size, part.matrix.columns
        view, cut = self._view(data, start, samples * (rows + columns)), samples * rows
        return view[:cut].reshape(samples, rows), view[cut:].reshape(samples, columns)


def _parts(shard: Range, factored: Factored) -> list[Part]:
    """Return the parts of a shard, in its order: as factors, what is smaller so."""
    parts, end = [], 0
    for matrix in factored.matrices:
        own = matrix.range.intersect(shard)
        if own is None:
            continue
        part = Part(own.shift(-shard.start), matrix._replace(start=matrix.start - shard.start))
        if part.elements(factored.samples) >= own.size:
            continue
        if end < part.range.start:
            parts.append(Part(Range(end, part.range.start), None))
        parts.append(part)
        end = part.range.stop
    return parts if end == shard.size else [*parts, Part(Range(end, shard.size), None)]


def _multiply(inputs: np.ndarray, output_gradient: np.ndarray, first: int, out: np.ndarray) -> None:
    """Compute elements of ``inputs.T @ output_gradient``, from the flat index `first` on, into `out` (n,)."""
    columns = output_gradient.shape[1]
    row, column = divmod(first, columns)
    done = 0
    if column:
        done = min(columns - column, out.size)
        np.matmul(inputs[:, row], output_gradient[:, column : column + done], out=out[:done])
        row += 1
    rows = (out.size - done) // columns
    if rows:
        whole = out[done : done + rows * columns].reshape(rows, columns)
        np.matmul(inputs[:, row : row + rows].T, output_gradient, out=whole)
    done += rows * columns
    if done < out.size:
        np.matmul(inputs[:, row + rows], output_gradient[:, : out.size - done], out=out[done:])
