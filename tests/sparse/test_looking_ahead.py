"""Rows of the next batches are asked for before the present one, each batch once and in order."""

import numpy as np
import pytest

from mpidl.data import ArraySplit
from mpidl.sparse.ahead import LookingAhead

IDS = np.arange(40).reshape(20, 2)


class Rows:
    """A model and its source of rows, which note what they are asked."""

    def __init__(self, known=True):
        self.known, self.noted = known, []

    def wanted(self, batch):
        return [batch.inputs.tolist()] if self.known else None

    def ask(self, wanted):
        self.noted.append(("ask", wanted[0][0][0]))

    def begin(self):
        self.noted.append("begin")


def batches(rows, depth, announced, count=5):
    """Take batches of 2 samples as a loader does, which announces the next ones."""
    split = LookingAhead(ArraySplit(IDS, np.zeros((20, 1))).as_integers(), rows, rows.ask, rows.begin, depth)
    assert split.lookahead == max(1, depth)
    parts, announced_so_far = [np.array([2 * k, 2 * k + 1]) for k in range(count)], 1
    for number, part in enumerate(parts):
        for following in parts[announced_so_far : number + 1 + announced if announced else 0]:
            split.prepare(following)
            announced_so_far += 1
        rows.noted.append(("take", split.gather(part).inputs.tolist()))
    return rows.noted


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_batch_is_asked_for_once_and_before_the_one_before_it(depth):
    noted = batches(Rows(), depth, announced=depth)
    taken = [each[1] for each in noted if each[0] == "take"]
    assert taken == [IDS[2 * k : 2 * k + 2].tolist() for k in range(5)]
    assert [each[1] for each in noted if each[0] == "ask"] == [4, 8, 12, 16]
    assert noted.count("begin") == 4
    for number in range(1, 5):
        asked, before = noted.index(("ask", 4 * number)), noted.index(("take", taken[number - 1]))
        assert asked < before
    for number in range(depth, 5 - depth):
        assert noted.index(("ask", 4 * (number + depth))) < noted.index(("take", taken[number]))


def test_lookups_that_only_the_computation_shows_are_not_asked_for():
    noted = batches(Rows(known=False), 2, announced=2)
    assert [each[0] for each in noted] == ["take"] * 5


def test_a_batch_that_was_not_announced_is_read_when_it_is_taken():
    noted = batches(Rows(), 1, announced=0)
    assert [each[0] for each in noted] == ["take"] * 5
