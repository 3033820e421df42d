"""DistBelief's figure 3: the speed-up of a minibatch of four networks on 1 to 128 machines, predicted.

Networks and cuts are the paper's: dense layers by units, others by tiles of the image. According to the paper, machines
used up to 20 cores for a model. The samples of a minibatch and the speeds of machines and links are assumptions; the
figure also shows the range for other speeds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from contrasts import Case, Finding
from mpidl.config import toml
from mpidl.errors import UsageError
from mpidl.nn import Layer
from mpidl.nn.graph import Graph
from mpidl.nn.network import layer_from_section
from mpidl.partition.costs import Basis, Costs, plan_seconds
from mpidl.partition.planner import make_plan

TITLE = "Speed-up by machines of a replica, DistBelief's figure 3 (Dean et al. 2012)"
JOBS = Path(__file__).parents[2] / "jobs"
#: The paper's smallest and largest network, and its numbers: machines, and times as fast as on one.
SPEECH, LARGEST = "speech: 42 million", "images: 1.7 billion"
PAPER = {SPEECH: (8, 2.2), LARGEST: (81, 12.0)}
#: Of each of the others: maps, and size and stride of pooling (see the file of the job).
IMAGES = {
    "images: 80 million": (16, ((2, 2), (2, 2), (2, 2))),
    "images: 330 million": (16, ((2, 1), (2, 2), (2, 2))),
    LARGEST: (36, ((2, 1), (2, 1), (6, 6))),
}
CURVE = (1, 2, 4, 8, 16, 32, 64, 81, 128)
#: Assumptions: samples of a minibatch; operations per second of 20 cores, 7.5 Gflop/s each; links of 1 Gbit/s, and
#: seconds of a message. Then other values of the last ones, to see their influence.
BATCH = 100
SPEEDS, LINK = (150e9, 200e-6), 1.25e8
OTHERS = ((100e9, 100e-6), (100e9, 200e-6), (150e9, 100e-6), (200e9, 100e-6), (200e9, 200e-6), (300e9, 100e-6))


def cases(quick: bool) -> dict[str, Case]:
    """Return a curve of each network."""
    if quick:
        return {SPEECH: partial(curves, SPEECH, (1, 2), (SPEEDS,))}
    others = {SPEECH: OTHERS, LARGEST: OTHERS}
    return {name: partial(curves, name, CURVE, (SPEEDS, *others.get(name, ()))) for name in (SPEECH, *IMAGES)}


def curves(name: str, machines: tuple[int, ...], speeds: tuple[tuple[float, float], ...]) -> list[dict[int, float]]:
    """Return how many times as fast a network is on numbers of machines, for each of the speeds."""
    layers, shape = network(name)
    found = []
    for flops, latency in speeds:
        # Layers without products take 50 operations an element.
        costs = Costs(
            flops=flops, elements=flops / 50, parameter_bandwidth=1e10, between_bandwidth=LINK, between_latency=latency
        )
        seconds = {ranks: predict(layers, shape, ranks, costs) for ranks in machines}
        found.append({ranks: seconds[1] / each for ranks, each in seconds.items()})
    return found


def network(name: str) -> tuple[list[Layer], tuple[int, ...]]:
    """Return the layers of one of the paper's networks, and the shape of a sample."""
    sections = toml.read(JOBS / f"distbelief_{'speech' if name == SPEECH else 'image'}.toml")
    layers = [layer_from_section(each, f"layer[{i}]") for i, each in enumerate(sections["model"]["layer"])]
    if name in IMAGES:
        maps, pools = IMAGES[name]
        for number, layer in enumerate(layers):
            if layer.type == "locally_connected2d":
                layers[number] = replace(layer, channels=maps, stride=1)
            if layer.type == "l2_pool2d":
                size, stride = pools[number // 3]
                layers[number] = replace(layer, size=size, stride=stride)
    return layers, tuple(sections["data"]["shape"])


def predict(layers: list[Layer], shape: tuple[int, ...], ranks: int, costs: Costs) -> float:
    """Return the seconds of a minibatch on `ranks` machines."""
    cut = as_in_the_paper(layers, shape, ranks)
    plan = make_plan(cut, shape, ranks, batch=BATCH, costs=costs, ranks_per_node=1)
    return plan_seconds(plan, Basis(BATCH, costs, 4, 1))


def as_in_the_paper(layers: list[Layer], shape: tuple[int, ...], ranks: int) -> list[Layer]:
    """Return layers cut by tiles, dense ones by units; the planner chooses the cut of an image that is too small."""
    graph, found = Graph(layers, shape), []
    for index, layer in enumerate(layers):
        cut = "units" if layer.type == "dense" else "tiles"
        try:
            layer.pieces(cut, 0, ranks, *graph.input_shapes(index))
        except UsageError:
            cut = ""
        found.append(replace(layer, cut=cut))
    return found


def findings(runs: dict[str, list[dict[int, float]]]) -> list[Finding]:
    """Compare where the smallest network is fastest, and how fast the largest one is."""
    found = []
    if SPEECH in runs:
        best, *others = [max(each, key=each.__getitem__) for each in runs[SPEECH]]
        fastest = [max(each.values()) for each in runs[SPEECH]]
        here = spread(f"{best} machines", [best, *others])
        found.append(Finding(f"{SPEECH}: fastest on", "8 machines", here, best == PAPER[SPEECH][0]))
        agrees = min(fastest) <= PAPER[SPEECH][1] <= max(fastest)
        found.append(Finding("and then times as fast", "2.2", spread(f"{fastest[0]:.1f}", fastest), agrees))
    if LARGEST in runs:
        fastest = [each[PAPER[LARGEST][0]] for each in runs[LARGEST]]
        here, agrees = spread(f"{fastest[0]:.1f}", fastest), fastest[0] > PAPER[LARGEST][1]
        found.append(Finding(f"{LARGEST}: on 81 machines times as fast", "more than 12", here, agrees))
    if len(runs) > 2:
        order = [runs[name][0][PAPER[LARGEST][0]] for name in (SPEECH, *IMAGES)]
        here = ", ".join(f"{each:.1f}" for each in order)
        what = "on 81 machines, from the smallest network to the largest"
        found.append(Finding(what, "larger ones gain more", here, order == sorted(order)))
    return found


def spread(found: str, values: list[float]) -> str:
    """Return what was found, with the range for other speeds."""
    low, high = (f"{each:.0f}" if isinstance(each, int) else f"{each:.1f}" for each in (min(values), max(values)))
    return found if len(values) == 1 else f"{found}; {low} to {high} at other speeds"


def draw(figure: Any, runs: dict[str, list[dict[int, float]]]) -> None:
    """Draw the curves, bands for other speeds, and the paper's points."""
    axes = figure.subplots()
    for name, (first, *others) in runs.items():
        (line,) = axes.plot(list(first), list(first.values()), "o-", label=name)
        if others:
            ranges = [[each[ranks] for each in (first, *others)] for ranks in first]
            axes.fill_between(
                list(first), list(map(min, ranges)), list(map(max, ranges)), color=line.get_color(), alpha=0.15
            )
        if name in PAPER:
            axes.plot(*PAPER[name], "*", markersize=15, color=line.get_color(), label=f"paper, {name}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(CURVE, list(map(str, CURVE)))
    axes.set(xlabel="machines of a replica", ylabel="speed-up over one machine")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
