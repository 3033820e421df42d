"""Callbacks: what they are called with, and what ends a run."""

import json
import re

import numpy as np
import pytest

import mpidl
from mpidl.errors import MpidlError, UsageError
from mpidl.job.callbacks import Callbacks

TRAINING = mpidl.Indexed([(np.eye(8, dtype=np.float32) * number, number % 10) for number in range(40)])


def train(path, *callbacks, **keywords):
    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    given = {"epochs": 2, "batch": 64, "dir": path, "device": "cpu", "report": 1e-3} | keywords
    return network, mpidl.train(network, mpidl.Digits(), callbacks=callbacks, **given)


def test_each_record_and_the_present_values(tmp_path):
    records, values, figures = [], [], {}

    def keep(record, tensors):
        values.append((record["test_accuracy"], {name: each.copy() for name, each in tensors.items()}))

    network, summary = train(tmp_path, records.append, keep, lambda record, figures=figures: figures.update(record))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records == lines
    assert len(lines) >= 3
    assert figures["test_loss"] == summary["test_loss"]
    last = values[-1][1]
    assert {name: each.shape for name, each in last.items()} == {"0-dense/weight": (64, 10), "0-dense/bias": (10,)}
    for name, tensor in network.layout.views(network.parameters).items():
        assert np.array_equal(last[name], tensor)
    assert not np.array_equal(values[0][1]["0-dense/bias"], last["0-dense/bias"])


@pytest.mark.parametrize("data", [mpidl.Digits(), TRAINING])
def test_an_iteration_is_one_record_whether_it_is_evaluated_or_not(tmp_path, data):
    records = []
    given = {"algorithm": mpidl.Sandblaster(), "epochs": 6, "device": "cpu", "dir": tmp_path}
    mpidl.train(mpidl.Network([mpidl.Dense(10)], (8, 8)), data, callbacks=[records.append], **given)
    numbers = [record["iteration"]["number"] for record in records]
    assert len(numbers) >= 3
    assert numbers == sorted(set(numbers))
    if data is not TRAINING:
        losses = [record["test_loss"] for record in records]
        assert len(set(losses)) == len(losses)


def test_what_a_callback_raises_ends_the_run(tmp_path):
    def upload(record):
        raise ConnectionError("no route to\nwandb.ai")

    line = r"^callbacks: upload raised ConnectionError: no route to \(MPIDL_DEBUG=1 shows its traceback\)$"
    with pytest.raises(MpidlError, match=line):
        train(tmp_path, upload)
    train(tmp_path, name="run")  # nothing is left of the first


@pytest.mark.parametrize(
    ("callbacks", "text"),
    [
        (print, "callbacks: expected a list of functions, found <built-in function print>"),
        ([print, 3], "callbacks[1]: expected a function of a record, or of a record and the model's values, found 3"),
        ([lambda a, b, c: None], "callbacks[0]: expected a function of a record"),
        ([lambda: None], "callbacks[0]: expected a function of a record"),
        ([lambda a, *, step: None], "callbacks[0]: expected a function of a record"),
    ],
)
def test_what_is_no_callback(tmp_path, callbacks, text):
    with pytest.raises(UsageError, match=f"^{re.escape(text)}"):
        mpidl.train(mpidl.Network([mpidl.Dense(10)], (8, 8)), mpidl.Digits(), callbacks=callbacks, dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_functions_of_any_kind(tmp_path):
    class Board:
        def __init__(self):
            self.steps = 0

        def __call__(self, record):
            self.steps += 1

    board = Board()
    train(tmp_path, print, board, [].append, max)  # no signature is known of the last
    assert board.steps >= 2


def test_callbacks_share_the_values_and_nothing_else(tmp_path):
    found = []

    def take(record, tensors):
        found.append((record.pop("test_loss"), tensors["0-dense/weight"]))

    train(tmp_path, take, take, lambda record: found.append(record["test_loss"]))
    first, second, third = found[-3:]
    assert first[0] == second[0] == third > 0
    assert first[1] is second[1]


def test_only_callbacks_of_two_arguments_take_values():
    assert [Callbacks(functions).take_values for functions in ([], [print], [print, lambda record, tensors: None])] == [
        False, False, True,
    ]  # fmt: skip
