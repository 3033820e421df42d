"""Samples of any kind become a batch, and digests of what is in them."""

import datetime
import re
from collections import OrderedDict

import numpy as np
import pytest
from own_data import Frozen, Line, Numbers, Point, objects
from scipy.sparse import csr_matrix

from mpidl.config import from_dict
from mpidl.data import Indexed
from mpidl.data.collation import collate
from mpidl.data.nested import Digest
from mpidl.job.checkpoints import identify
from mpidl.job.checks import of_samples
from mpidl.job.job import Job


class Tensor:
    """What NumPy can make an array of, like a tensor of PyTorch."""

    def __init__(self, *values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, np.float16)


def test_samples_are_stacked():
    assert collate([1, 2]).tolist() == [1, 2]
    assert collate([[0.5, 1], [2, 3]]).tolist() == [[0.5, 1], [2, 3]]
    assert collate([np.zeros((2, 3), np.uint8)] * 4).shape == (4, 2, 3)
    assert collate([Tensor(1, 2), Tensor(3, 4)]).dtype == np.float16
    ids, rest = collate([(np.int64(1), {"a": 2.0}), (np.int64(3), {"a": 4.0})])
    assert (ids.dtype, ids.tolist(), rest["a"].tolist()) == (np.int64, [1, 3], [2, 4])
    assert collate([np.empty((2, 0))] * 3).shape == (3, 2, 0)
    days = collate([np.datetime64("2020-02-29"), np.datetime64("2021-01-01")])
    assert days.tolist() == [datetime.date(2020, 2, 29), datetime.date(2021, 1, 1)]


def test_parts_are_stacked_in_the_containers_of_the_samples():
    samples = [Point(number, Frozen(f"text {number}", [{"a": number}, b"bytes"])) for number in range(3)]
    stacked = collate(samples)
    assert (type(stacked), stacked.x.tolist(), type(stacked.y)) == (Point, [0, 1, 2], Frozen)
    assert stacked.y.name == ["text 0", "text 1", "text 2"]
    assert [stacked.y.more[0]["a"].tolist(), stacked.y.more[1]] == [[0, 1, 2], [b"bytes"] * 3]
    ordered = collate([OrderedDict(b=1, a=2)] * 2)
    assert (type(ordered), list(ordered)) == (OrderedDict, ["b", "a"])
    assert samples[0].y == Frozen("text 0", [{"a": 0}, b"bytes"])


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        ([np.zeros(3), np.zeros(4)], "samples of shapes (3,) and (4,), expected a collate function for them"),
        ([object(), object()], "an object is neither an array nor a number, expected a collate function for it"),
        ([1.0, None], "None is neither an array nor a number, expected a collate function for it"),
        (
            [csr_matrix(np.eye(2))] * 2,
            "a csr_matrix is neither an array nor a number, expected a collate function for it",
        ),
        (
            [np.array([{}])] * 2,
            "an array of object is neither an array nor a number, expected a collate function for it",
        ),
        ([{"a": 1}, {"b": 1}], "samples with different parts, expected a collate function for them"),
        ([(1, 2), (1, 2, 3)], "samples with different parts, expected a collate function for them"),
    ],
)
def test_samples_that_do_not_stack(samples, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        collate(samples)


# Digests.


def digest(*values, samples=2):
    found = Digest(samples)
    found.update(values)
    return found.text()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.arange(2), np.arange(2)[::-1]),
        ({"a": [Tensor(3), 4], "b": None}, {"a": [Tensor(3), 5], "b": None}),
        ("text", "Text"),
        (b"", b"0"),
        (np.datetime64("2020-01-01"), np.datetime64("2020-01-02")),
        (np.array([1, 2], ">i2"), np.array([1, 3], ">i2")),
        (np.array([(1, 2.0)], "i4,f8"), np.array([(1, 3.0)], "i4,f8")),
        (np.array(["a"]), np.array(["b"])),
        (1 + 2j, 1 + 3j),
    ],
)
def test_digests_are_of_values_wherever_they_are(one, other):
    assert digest(one) == digest(one) != digest(other)
    assert digest(Point(0, one)) == digest(Point(0, one)) != digest(Point(0, other))
    assert "without" not in digest(one)


def test_digests_name_what_they_leave_out():
    assert digest(np.empty((2, 0)), np.empty(0, "M8[s]"), None) == digest()
    found = digest(1, object(), Point(csr_matrix(np.eye(2)), np.array([{}])))
    assert found == f"{digest(1)} without a csr_matrix, a ndarray, an object"


def test_what_digests_leave_out_is_said_once(tmp_path):
    data = Indexed(Numbers(), Numbers(), collate=objects).open()
    sections = {"model": {"factory": "python:object"}, "run": {"epochs": 1}}
    job = Job.of(from_dict(sections, data_source=Indexed(Numbers(), Numbers())), data, Line())
    note = "data: checksums leave out an object: ranks and resumed runs may differ in these"
    assert [*identify(job, of_samples(data)).notes] == [*job.notes, note]
