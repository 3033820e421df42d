"""The choice of a cut for each layer: the plan with the least time, by beam search over the network's graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, prod

import numpy as np
from msgspec.structs import replace

from mpidl.errors import UsageError, quoted
from mpidl.nn.graph import Graph
from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Shape
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Box, Range, boxes, split
from mpidl.partition.costs import Basis, Costs, movement_seconds, work_seconds
from mpidl.partition.plan import CutLayer, Plan, TensorDistribution, TensorPart, sharers

#: Number of plans that the search keeps after each layer.
BEAM = 64


def make_plan(
    layers: Sequence[Layer], input_shape: Shape, partitions: int, *, batch: int, stages: int = 1,
    costs: Costs | None = None, itemsize: int = 4, ranks_per_node: int | None = None,
) -> Plan:  # fmt: skip
    """Cut a network over ranks.

    Parameters
    ----------
    layers, input_shape
        As of a `Network`. A layer's `cut`, if any, determines its cut.
    partitions
        Number of ranks.
    batch
        Samples of a minibatch.
    stages
        Number of runs of consecutive layers into which the network is divided, each with its share of the ranks.
    costs
        Speeds, and a rank's memory.
    itemsize
        Bytes of an element.
    ranks_per_node
        Number of consecutive ranks of the replica on each node; all of them by default.

    Returns
    -------
    Plan
        The same one on every rank.

    Raises
    ------
    UsageError
        A layer doesn't have its `cut`, there are fewer layers than stages, the ranks can't be divided among the stages,
        or a rank needs more memory than it has.
    """
    graph = Graph(layers, input_shape)
    basis = Basis(batch, Costs() if costs is None else costs, itemsize, ranks_per_node)
    search = _Search(graph, _ranks_of_layers(graph, partitions, stages, basis), partitions, basis)
    chosen, outputs = search.run()
    steps = _joined(graph, [choice.steps for choice in chosen])
    shapes = [
        (f"{name}/{key}", shape)
        for index, (layer, name) in enumerate(zip(layers, graph.names, strict=True))
        for key, shape in layer.parameters(*graph.input_shapes(index)).items()
    ]
    return Plan(partitions, steps, outputs, *hold(shapes, steps, partitions), stages)


def _ranks_of_layers(graph: Graph, partitions: int, stages: int, basis: Basis) -> list[Range]:
    """Return the ranks that compute each layer."""
    if partitions % stages:
        raise UsageError(f"topology.stages: {stages}, expected a divisor of the {partitions} partitions")
    if stages > len(graph.layers):
        raise UsageError(f"topology.stages: {stages}, expected at most one for each of the {len(graph.layers)} layers")
    weights = []
    for index, layer in enumerate(graph.layers):
        shapes, output = graph.input_shapes(index), graph.shapes[index + 1]
        nbytes = sum(map(prod, layer.parameters(*shapes).values())) * basis.itemsize
        operations = 3 * layer.operations(*shapes) * basis.samples
        elements = sum(map(prod, (*shapes, output))) * basis.samples
        weights.append(basis.costs.layer(layer.type, operations, nbytes, elements))
    size, runs = partitions // stages, balanced(weights, stages)
    return [Range(stage * size, (stage + 1) * size) for stage, own in enumerate(runs) for _ in range(*own)]


def _joined(graph: Graph, by_layer: Sequence[tuple[CutLayer, ...]]) -> tuple[CutLayer, ...]:
    """Return the steps of all layers, with operands numbered by steps."""
    values, steps = [0], []
    for index, own in enumerate(by_layer):
        known = [values[operand] for operand in graph.operands[index]]
        for step in own:
            steps.append(replace(step, operands=tuple(known[operand] for operand in step.operands)))
            known.append(len(steps))
        values.append(len(steps))
    return tuple(steps)


class _Choice:
    """One cut of a layer: its steps, with operands counted from 0, the distribution of its outputs, and its costs.

    These are seconds, apart from the movement of operands, and bytes on each rank.
    """

    def __init__(self, steps: tuple[CutLayer, ...], basis: Basis, first: bool) -> None:
        self.steps, self.given = steps, steps[-1].given
        self.seconds = sum(work_seconds(step, basis, first and number == 0) for number, step in enumerate(steps))
        for one, other in pairwise(steps):
            self.seconds += movement_seconds(one.given, other.taken[0], basis)
        elements = [sum(step.memory(rank, basis.samples) for step in steps) for rank in range(len(self.given))]
        self.memory: np.ndarray = np.array(elements, float) * basis.itemsize


@dataclass(frozen=True)
class _State:
    """A plan of the first layers: its seconds, bytes on each rank, and the name of each layer's cut."""

    seconds: float
    memory: np.ndarray
    cuts: tuple[str, ...]


class _Search:
    """A beam search over the layers in their order."""

    def __init__(self, graph: Graph, ranks: Sequence[Range], partitions: int, basis: Basis) -> None:
        self._graph, self._ranks, self._partitions, self._basis = graph, ranks, partitions, basis
        self._choices: list[dict[str, _Choice]] = []
        self._movements: dict[tuple[int, str, int, str], float] = {}
        last, whole = ranks[-1], Box.whole(graph.shapes[-1])
        outputs: list[TensorPart | None] = [None] * partitions
        for number, rank in enumerate(range(*last)):
            outputs[rank] = TensorPart(whole, (number, last.size))
        self._outputs: TensorDistribution = tuple(outputs)

    def run(self) -> tuple[list[_Choice], TensorDistribution]:
        """Return the best choice for each layer, and the distribution of the outputs for the loss."""
        states = [_State(0.0, np.zeros(self._partitions), ())]
        for index in range(len(self._graph.layers)):
            self._choices.append(self._candidates(index))
            following = [self._next(state, index, cut) for state in states for cut in self._choices[index]]
            states = self._kept(index, following)
        best = min(states, key=self._to_the_end)
        return [choices[cut] for choices, cut in zip(self._choices, best.cuts, strict=True)], self._outputs

    def _candidates(self, index: int) -> dict[str, _Choice]:
        """Return a layer's cuts, in its own order."""
        layer, name = self._graph.layers[index], self._graph.names[index]
        ranks, shapes = self._ranks[index], self._graph.input_shapes(index)
        first = not any(self._graph.operands[index])
        found: dict[str, _Choice] = {}
        reasons: dict[str, UsageError] = {}
        for cut in [*layer.cuts, "samples"] if ranks.size > 1 else ["samples"]:
            try:
                steps = cut_layer(layer, name, cut, ranks, self._partitions, shapes)
            except UsageError as error:
                reasons[cut] = error
            else:
                found[cut] = _Choice(steps, self._basis, first)
        if not layer.cut or ranks.size == 1:
            return found
        if layer.cut not in found:
            raise UsageError(
                f"model.layer[{index}].cut: {quoted(name)} can't be cut by {layer.cut}: {reasons[layer.cut]}; "
                f"over {ranks.size} ranks it can by {' or '.join(found)}"
            )
        return {layer.cut: found[layer.cut]}

    def _next(self, state: _State, index: int, cut: str) -> _State:
        choice, cuts = self._choices[index][cut], (*state.cuts, cut)
        seconds = state.seconds + choice.seconds
        for value in self._graph.operands[index]:
            # All ranks have the network's inputs, and values for another layer with the same distribution have moved.
            others = (layer for layer in range(index) if value in self._graph.operands[layer])
            if value and self._taken(index, cuts, value) not in [self._taken(layer, cuts, value) for layer in others]:
                seconds += self._movement(index, cuts, value)
        return _State(seconds, state.memory + choice.memory, cuts)

    def _taken(self, index: int, cuts: tuple[str, ...], value: int) -> TensorDistribution:
        """Return the distribution in which a layer takes a value."""
        operand = self._graph.operands[index].index(value)
        return self._choices[index][cuts[index]].steps[0].taken[operand]

    def _movement(self, index: int, cuts: tuple[str, ...], value: int) -> float:
        """Return the seconds to move a value to a layer."""
        key = value - 1, cuts[value - 1], index, cuts[index]
        if key not in self._movements:
            given = self._choices[value - 1][cuts[value - 1]].given
            self._movements[key] = movement_seconds(given, self._taken(index, cuts, value), self._basis)
        return self._movements[key]

    def _kept(self, index: int, states: Sequence[_State]) -> list[_State]:
        """Return the states to keep: the fastest and the lightest of those that are equivalent for later layers."""
        limit = inf if self._basis.costs.memory is None else self._basis.costs.memory
        fitting = [state for state in states if state.memory.max() <= limit]
        if not fitting:
            needed = min(state.memory.max() for state in states)
            raise UsageError(
                f"topology.partitions: {self._partitions} ranks need {needed / 1e9:.3g} GB each up to layer "
                f"{quoted(self._graph.names[index])}, expected at most {limit / 1e9:.3g} GB: more partitions, or a "
                "smaller minibatch"
            )
        later = {value for operands in self._graph.operands[index + 1 :] for value in operands} | {index + 1}
        # Layers whose values are needed later, and those that have taken such values, which needn't move again.
        live = [layer for layer in range(index + 1) if later & {layer + 1, *self._graph.operands[layer]} - {0}]
        fastest: dict[tuple[str, ...], _State] = {}
        lightest: dict[tuple[str, ...], _State] = {}
        for state in fitting:
            key = tuple(state.cuts[layer] for layer in live)
            if key not in fastest or state.seconds < fastest[key].seconds:
                fastest[key] = state
            if limit < inf and (key not in lightest or state.memory.max() < lightest[key].memory.max()):
                lightest[key] = state
        ordered = sorted([*fastest.values(), *lightest.values()], key=lambda state: state.seconds)
        least = min(fitting, key=lambda state: state.memory.max())
        return ordered[:BEAM] if limit == inf else [*ordered[:BEAM], least]

    def _to_the_end(self, state: _State) -> float:
        given = self._choices[-1][state.cuts[-1]].given
        return state.seconds + movement_seconds(given, self._outputs, self._basis)


def cut_layer(
    layer: Layer, name: str, cut: str, ranks: Range, partitions: int, shapes: Sequence[Shape]
) -> tuple[CutLayer, ...]:
    """Return the steps of a layer, with operands of these shapes, that is cut over some of the ranks.

    Returns
    -------
    tuple of CutLayer
        One step, or two, where the second takes the value of the first. Operands are counted from 0, and the first
        step's value follows them.

    Raises
    ------
    UsageError
        The layer can't be cut this way.
    """
    by_number = [layer.pieces(cut, number, ranks.size, *shapes) for number in range(ranks.size)]
    operands = [tuple(range(len(shapes))), (len(shapes),)]
    steps = []
    for pieces, taken in zip(zip(*by_number, strict=True), operands, strict=False):
        steps.append(_step(name, cut, pieces, ranks, partitions, taken))
    return tuple(steps)


def _step(
    name: str, cut: str, pieces: Sequence[Piece], ranks: Range, partitions: int, operands: tuple[int, ...]
) -> CutLayer:
    before, after = ranks.start, partitions - ranks.stop

    def everywhere(boxes: Sequence[Box]) -> TensorDistribution:
        shares = [(number, ranks.size) if cut == "samples" and ranks.size > 1 else None for number in range(ranks.size)]
        parts = [TensorPart(box, share) if box.size else None for box, share in zip(boxes, shares, strict=True)]
        return (*[None] * before, *parts, *[None] * after)

    return CutLayer(
        name,
        (*[None] * before, *(piece.layer for piece in pieces), *[None] * after),
        operands,
        tuple(everywhere([piece.inputs[operand] for piece in pieces]) for operand in range(len(operands))),
        everywhere([piece.outputs for piece in pieces]),
        (*({} for _ in range(before)), *(piece.tensors for piece in pieces), *({} for _ in range(after))),
        cut,
    )


def hold(
    shapes: Sequence[tuple[str, tuple[int, ...]]], steps: Iterable[CutLayer], partitions: int
) -> tuple[Layout, tuple[Range, ...]]:
    """Return the layout of the flat vector, in the order of the ranks that hold its parts, and each rank's range.

    A rank holds the tensors that only it takes. Those of several ranks are divided among them, in consecutive ranges of
    the flattened part. `shapes` are the names and shapes of the network's tensors.
    """
    held: dict[tuple[str, int], list[Box]] = {}
    for step in steps:
        for name, box, ranks in sharers(step.tensors):
            for rank, own in zip(ranks, split(box.size, len(ranks)), strict=True):
                inner = (part for part, _ in boxes(box.shape, *own))
                held.setdefault((f"{step.name}/{name}", rank), []).extend(part.placed(box) for part in inner)
    pieces: list[tuple[str, Box]] = []
    slices, size = [], 0
    for rank in range(partitions):
        start = size
        for name, _ in shapes:
            own_boxes = held.get((name, rank), [])
            pieces += [(name, box) for box in own_boxes]
            size += sum(box.size for box in own_boxes)
        slices.append(Range(start, size))
    return Layout(shapes, pieces), tuple(slices)


def balanced(weights: Sequence[float], parts: int) -> list[Range]:
    """Divide items, at least as many as `parts`, into consecutive non-empty runs so that the heaviest is minimal.

    Among such divisions, the sum of the squares of the runs' weights is minimal.
    """
    sums = [0, *accumulate(weights)]
    count = len(weights)
    # best[stop]: heaviest run, sum of squares and runs of the best division of the first `stop` items.
    best = {stop: (sums[stop], sums[stop] ** 2, [Range(0, stop)]) for stop in range(1, count + 1)}
    for part in range(1, parts):
        best = {
            stop: min(
                (
                    max(heaviest, sums[stop] - sums[start]),
                    squares + (sums[stop] - sums[start]) ** 2,
                    [*runs, Range(start, stop)],
                )
                for start, (heaviest, squares, runs) in best.items()
                if start < stop
            )
            for stop in range(part + 1, count + 1)
        }
    return best[count][2]
