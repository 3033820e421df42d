"""A signal that comes while a checkpoint is written, in one process."""

import signal

import pytest

import mpidl
from mpidl.algorithms import Downpour
from mpidl.data import Dataset
from mpidl.job.checkpoints import Checkpoints
from mpidl.rules import Sgd


@pytest.mark.parametrize("number", [1, 2])
def test_a_signal_while_a_checkpoint_is_written_orders_the_last_one(least_squares, tmp_path, monkeypatch, number):
    """The first checkpoint is that of the beginning, the second the last."""
    complete, written = Checkpoints.complete, []

    def interrupted(*arguments):
        done = complete(*arguments)
        written.append(arguments)
        if len(written) == number:
            signal.raise_signal(signal.SIGTERM)
        return done

    monkeypatch.setattr(Checkpoints, "complete", interrupted)
    model, split = least_squares()
    data = Dataset("test", (1,), None, split, split)
    options = {"rule": Sgd(0.05), "epochs": 2, "batch": 8, "dir": tmp_path, "on_interrupt": "return"}
    summary = mpidl.train(model, data, algorithm=Downpour(), **options)
    assert summary["interrupted"]
    assert len(written) == 2
    assert (summary["samples"] < 2 * 101) == (number == 1)
