"""Jobs whose models are cut, without ranks: first values, groups of parameters, and what can't be cut."""

import numpy as np
import pytest

from mpidl.config import from_dict
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.fill import fill, held_shards, own_segments
from mpidl.job.placed import place
from mpidl.job.planning import cut
from mpidl.job.ready import local_model
from mpidl.parameters import Range, moves
from threads import run

LAYERS = [
    {"type": "conv2d", "channels": 4, "size": 3, "activation": "tanh"},
    {"type": "dense", "units": 13, "activation": "tanh"},
    {"type": "dense", "units": 10},
]
GROUPS = [
    {"match": "2-dense.bias", "frozen": True},
    {"match": "*.bias", "rate": 0.5},
    {"match": "1-*", "weight_decay": 0.1},
]


def job(partitions=1, **more):
    sections = {
        "data": {"source": "digits", "batch": 24},
        "model": {"layer": LAYERS, "group": GROUPS},
        "topology": {"partitions": partitions},
        "algorithm": {"name": "downpour"},
        "device": {"kind": "cpu"},
    }
    return build(from_dict(sections | more))


def cut_job(job, partitions):
    return place(job, 1, cut(job, partitions))


@pytest.mark.parametrize("partitions", [2, 3])
def test_a_cut_job_begins_with_the_values_of_the_whole_one(partitions):
    whole = job()
    parts = cut_job(whole, partitions)
    vector = np.concatenate(
        [
            fill(parts, each.range, np.empty(each.range.size, whole.dtype), 50).parameters
            for each in held_shards(parts, 2)
        ]
    )
    back, size = np.empty_like(vector), parts.layout.size
    layout = whole.original.layout
    for move in moves(parts.layout, Range(0, size), layout, Range(0, size)):
        move.copy(vector, back)
    assert back.tobytes() == whole.first_values(Range(0, size), layout).tobytes()


def test_a_rank_has_the_groups_of_its_slice():
    whole = place(job(), 1)

    def work(group):
        placed = cut_job(job(), 2)
        local = local_model(placed, group)
        names = [(piece.name, piece.range.shift(-local.slice.start)) for piece in placed.layout.within(local.slice)]
        rates = {}
        for segment in own_segments(placed, local.slice):
            for name, part in names:
                if part.intersect(segment.range):
                    assert segment.range.intersect(part) == part
                    rates.setdefault(name, set()).add(segment[1:])
        return (rates, [name for name, _ in names]), local.host.parameters.size

    expected = {}
    for segment in whole.segments:
        for piece in whole.layout.within(segment.range):
            expected.setdefault(piece.name, set()).add(segment[1:])
    (first, one), (second, other) = run(2, work)
    for rates, names in (first, second):
        assert rates == {name: expected[name] for name in names if name in expected}
    assert one + other == whole.layout.size
    assert max(one, other) < 0.8 * whole.layout.size


@pytest.mark.parametrize(
    ("partitions", "layers", "line"),
    [
        (11, [{"type": "dense", "units": 10, "cut": "units"}],
         "model.layer[0].cut: '0-dense' can't be cut by units: "),
        (30, [{"type": "dense", "units": 10, "cut": "samples"}],
         "topology.partitions: 30, expected at most 24: 6 ranks would have nothing to compute"),
    ],
)  # fmt: skip
def test_a_cut_that_cannot_be_made_is_one_line(partitions, layers, line):
    with pytest.raises(UsageError) as error:
        cut(job(model={"layer": layers}), partitions)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


def test_a_deterministic_job_says_where_its_bits_depend_on_the_partitions():
    sections = {"run": {"deterministic": True}}
    cuts, note = cut_job(job(partitions=2, **sections), 2).notes
    assert cuts == "each replica is cut over 2 ranks: 0-conv2d by channels, 1-dense by units, 2-dense by inputs"
    assert note.startswith(
        "run.deterministic: every run of 2 partitions has the same bits, but runs of other numbers of"
    )
    assert note.endswith("1-dense, 2-dense")
    assert not job().notes


def test_a_job_in_stages_says_how_it_is_cut_and_that_micro_batches_are_summed():
    made = job(run={"deterministic": True}, topology={"partitions": 3, "stages": 3})
    cuts, note = cut_job(made, 3).notes
    assert (
        cuts
        == "each replica is cut over 3 ranks in 3 stages: 0-conv2d by samples, 1-dense by samples, 2-dense by samples"
    )
    assert note.endswith("since sums are rounded differently in micro-batches")


def test_stages_that_do_not_divide_the_partitions_are_one_line():
    with pytest.raises(UsageError, match=r"^topology.stages: 2, expected a divisor of the 3 partitions$"):
        cut(job(topology={"partitions": 3, "stages": 2}), 3)
