"""How models of consecutive modules are divided into stages."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.partition.planner import balanced
from mpidl.partition.sections import Submodule, cut_into_sections


@settings(max_examples=100)  # Few weights can be divided in several ways with the same heaviest run.
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.data())
def test_the_heaviest_run_and_then_the_squares_are_as_small_as_can_be(weights, data):
    parts = data.draw(st.integers(1, len(weights)))
    runs = balanced(weights, parts)
    assert [item for run in runs for item in range(*run)] == list(range(len(weights)))
    assert len(runs) == parts
    assert all(run.size for run in runs)

    def quality(ranges):
        sums = [sum(weights[start:stop]) for start, stop in ranges]
        return max(sums), sum(each**2 for each in sums)

    assert quality(runs) == min(
        quality(pairwise([0, *stops, len(weights)])) for stops in combinations(range(1, len(weights)), parts - 1)
    )


def test_of_equally_heavy_divisions_that_with_the_smaller_squares():
    assert balanced([0, 2, 1, 1], 3) == [(0, 2), (2, 3), (3, 4)]


SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any)


def modules_of(sizes):
    """Return modules with a tensor of the given numbers of elements each, none of 0, and the shapes."""
    modules = [
        Submodule([f"{n}.weight"] if size else [], [f"{n}.mean"] if size % 2 else []) for n, size in enumerate(sizes)
    ]
    shapes = {f"{n}.weight": (size,) for n, size in enumerate(sizes)} | {f"{n}.mean": (2,) for n in range(len(sizes))}
    return modules, shapes


@given(SIZES, st.data())
def test_each_stage_has_consecutive_modules_with_something_to_train(sizes, data):
    modules, shapes = modules_of(sizes)
    trained = [n for n, size in enumerate(sizes) if size]
    stages = data.draw(st.integers(1, len(trained)))
    plan = cut_into_sections(modules, shapes, stages)
    assert [n for run in plan.runs for n in range(*run)] == list(range(len(sizes)))
    assert all(any(n in trained for n in range(*run)) for run in plan.runs)
    assert (plan.partitions, plan.stages) == (stages, stages)
    names = {
        (piece.name, run) for run, own in zip(plan.runs, plan.slices, strict=True) for piece in plan.layout.within(own)
    }
    assert names == {
        (name, run) for run in plan.runs for n in range(*run) for name in (*modules[n].trained, *modules[n].statistics)
    }
    averaged = [piece.name for part in plan.statistics for piece in plan.layout.within(part)]
    assert averaged == [name for each in modules for name in each.statistics]


def test_the_first_modules_without_parameters_go_with_those_after_them():
    modules = [Submodule([], cost=9.0), Submodule(["a"], cost=1.0), Submodule([], cost=1.0), Submodule(["b"], cost=1.0)]
    assert cut_into_sections(modules, {"a": (1,), "b": (1,)}, 2).runs == ((0, 3), (3, 4))


def test_the_most_expensive_stage_costs_as_little_as_can_be():
    modules, shapes = modules_of([6, 2, 2, 4, 8])
    assert cut_into_sections(modules, shapes, 3).runs == ((0, 1), (1, 4), (4, 5))
    with pytest.raises(UsageError, match=r"topology\.stages: 6, expected at most one for each of 5 trained modules"):
        cut_into_sections(modules, shapes, 6)
