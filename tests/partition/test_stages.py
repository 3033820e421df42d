from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.partition.planner import balanced


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
