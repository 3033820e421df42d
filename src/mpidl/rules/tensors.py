"""The base class of rules of whole tensors, and their steps where gradients arrive in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mpidl.launch.fault_points import fault_point
from mpidl.parameters.ranges import Range
from mpidl.rules.rule import Rule
from mpidl.rules.segments import Segment


class TensorRule(Rule):
    """An update rule of whole matrices, and a scalar rule, `other`, for all other parameters.

    The scalar form gathers the gradient of a matrix in the states, chunk by chunk, and leaves the parameters as they
    are. `step` changes the matrix when the whole gradient is there. Both rules have the same states.

    Attributes
    ----------
    other : Rule
        Updates parameters that aren't in matrices.
    other_factor : float
        The rate of `other`, per unit of this rule's.
    """

    weight_decay: float

    @property
    def other(self) -> Rule:
        raise NotImplementedError

    @property
    def scalar_rules(self) -> tuple[Rule, ...]:
        return self, self.other

    @property
    def other_factor(self) -> float:
        return self.other.rate / self.rate

    def step(self, matrix: Any, states: Sequence[Any], rate: float, workspace: Any, transposed: bool) -> None:
        """Change a matrix in place.

        Parameters
        ----------
        matrix : array, shape (m, n)
            NumPy or CuPy, float32 or float64.
        states : sequence of array
            The matrix's part of each state, shape (m, n).
        rate : float
            Learning rate.
        workspace : array
            A vector of `workspace_size` elements, which is overwritten.
        transposed : bool
            Whether rows of the matrix are its inputs, and columns its outputs.
        """
        raise NotImplementedError

    def workspace_size(self, rows: int, columns: int) -> int:
        """Return the number of elements that `step` needs besides a matrix and its states."""
        raise NotImplementedError

    def operations(self, rows: int, columns: int) -> float:
        """Return the number of floating-point operations of a `step`."""
        raise NotImplementedError


class WholeTensors:
    """The steps of a rule of whole tensors in one range of the flat vector.

    A matrix is stepped when all its chunks have got a gradient. Chunks of several workers' gradients may be
    interleaved; there is a step for each gradient.

    Parameters
    ----------
    whole : Range
        A range of the flat vector that cuts no matrix.
    pieces : sequence of Range
        The chunks of `whole`, by their places in the flat vector.
    segments : sequence of Segment
        Those with a matrix are stepped.

    Attributes
    ----------
    states : tuple of str
        Names of the rule's states.
    """

    def __init__(self, rule: TensorRule, whole: Range, pieces: Sequence[Range], segments: Sequence[Segment]) -> None:
        import numpy as np

        own = [each for each in segments if each.range.intersect(whole) is not None and not each.frozen]
        self._matrices = [(each, each.matrix) for each in own if each.matrix is not None]
        self._rules = [
            rule if each.weight_decay is None else replace(rule, weight_decay=each.weight_decay)  # type: ignore[type-var]
            for each, _ in self._matrices
        ]
        self._places = [slice(*each.range.shift(-whole.start)) for each, _ in self._matrices]
        self._chunks = [
            [number for number, piece in enumerate(pieces) if piece.intersect(each.range)] for each, _ in self._matrices
        ]
        self._of_chunk: list[list[int]] = [[] for _ in pieces]
        for matrix, chunks in enumerate(self._chunks):
            for chunk in chunks:
                self._of_chunk[chunk].append(matrix)
        self.states = rule.states
        #: Gradients that each chunk has got beyond the steps of each of its matrices.
        self._ahead = [np.zeros(len(chunks), np.int64) for chunks in self._chunks]
        self._size = max((rule.workspace_size(*matrix.shape) for _, matrix in self._matrices), default=0)
        self._workspace: Any = None

    def arrived(self, chunk: int, parameters: Any, states: Sequence[Any], rate: float) -> list[int]:
        """Step the matrices whose gradient is complete with this chunk's; return the chunks that have changed.

        A chunk counts as changed when the last of its matrices has been stepped, and one without matrices at once.

        Parameters
        ----------
        parameters, states : array, shape (whole.size,)
            Vectors of the whole range.
        """
        changed = [] if self._of_chunk[chunk] else [chunk]
        for number in self.count(chunk):
            self._step(number, parameters, states, rate)
            changed += [each for each in self._chunks[number] if self._of_chunk[each][0] == number]
        return changed

    def count(self, chunk: int) -> list[int]:
        """Count a gradient of a chunk, and return the numbers of the matrices whose gradient is complete with it."""
        complete = []
        for number in self._of_chunk[chunk]:
            ahead = self._ahead[number]
            ahead[chunk - self._chunks[number][0]] += 1
            if ahead.all():
                ahead -= 1
                complete.append(number)
        return complete

    def reopen(self, last: int) -> None:
        """Count the chunks of a gradient that another process has received, down to number `last`."""
        for chunks, ahead in zip(self._chunks, self._ahead, strict=True):
            if last > chunks[0]:
                ahead[last - chunks[0] :] += 1

    def _step(self, number: int, parameters: Any, states: Sequence[Any], rate: float) -> None:
        import numpy as np

        (segment, (rows, columns, transposed)), place = self._matrices[number], self._places[number]
        if self._workspace is None:
            self._workspace = np.empty_like(parameters, shape=self._size)
        matrix, *parts = (vector[place].reshape(rows, columns) for vector in (parameters, *states))
        self._rules[number].step(matrix, parts, rate * segment.rate, self._workspace, transposed)
        fault_point("half-applied")

    def state(self) -> Any:
        """Return the gradients of each chunk that matrices haven't been stepped by."""
        import numpy as np

        return np.concatenate([np.zeros(0, np.int64), *self._ahead])

    def load(self, state: Any) -> None:
        """Copy the `state` of other matrices; between two pushes there are no such gradients, whatever the chunks."""
        import numpy as np

        stops = np.cumsum([len(each) for each in self._ahead])
        if self._ahead and len(state) == stops[-1]:
            for ahead, saved in zip(self._ahead, np.split(state, stops[:-1]), strict=True):
                ahead[:] = saved
