"""Histograms of staleness: exact figures, also of what shares the last bin."""

import numpy as np
import pytest

from mpidl.shards.staleness import BINS, Histogram


def of(values):
    found = Histogram()
    for value in values:
        found.add(value)
    return found


@pytest.mark.parametrize("values", [[0], [3, 1, 2, 2], [*range(200)], [7] * 99 + [9], [7] * 98 + [9, 9]])
def test_statistics_are_those_of_the_values(values):
    ordered = np.sort(values)
    p50, p99 = (int(ordered[-(-percent * len(values) // 100) - 1]) for percent in (50, 99))
    expected = {"mean": np.mean(values), "p50": p50, "p99": p99, "max": max(values)}
    assert of(values).statistics() == expected


def test_values_beyond_the_bins_have_an_exact_mean_and_the_maximum_as_percentiles():
    found = of([1] * 50 + [BINS - 2] * 10 + [BINS + 5] * 39 + [BINS + 900])
    assert found.statistics() == {
        "mean": (50 + 10 * (BINS - 2) + 39 * (BINS + 5) + BINS + 900) / 100, "p50": 1, "p99": BINS + 900,
        "max": BINS + 900,
    }  # fmt: skip


def test_a_total_has_the_values_of_all_in_any_order():
    for parts in ([[9], [2, 4]], [[2, 4], [9]]):
        assert Histogram.total(map(of, parts)).statistics() == of([2, 4, 9]).statistics()
