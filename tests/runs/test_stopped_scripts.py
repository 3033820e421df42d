"""A signal stops a run of a script: the process ends with 75 after saving, unless the script asks for the summary."""

import signal
import subprocess
import sys
import threading

import pytest

import mpidl
from mpidl.data import Dataset
from mpidl.job.checkpoints import Checkpoints
from mpidl.launch.command import command
from mpidl.launch.signals import STOPPING


@pytest.fixture(autouse=True)
def signals():
    """Signals are handled as in a new process, and afterwards as before: commands in this process leave handlers."""
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def handling():
    """How this process handles the signals, and which it blocks."""
    return [signal.getsignal(number) for number in STOPPING], signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.fixture
def train(least_squares, tmp_path):
    """Train a model that raises a signal at a batch, counted through all trainings."""
    model, split = least_squares()
    gradient, calls = model.loss_and_gradient, []

    def raising(batch, number, at):
        calls.append(batch)
        if len(calls) == at:
            signal.raise_signal(number)
        return gradient(batch)

    def run(number=signal.SIGTERM, at=5, **options):
        model.loss_and_gradient = lambda batch: raising(batch, number, at)
        data = Dataset("test", (1,), None, split, split)
        options = {"rule": mpidl.Sgd(0.05), "epochs": 2, "batch": 8, "dir": tmp_path, **options}
        return mpidl.train(model, data, **options)

    return run


@pytest.mark.parametrize("number", STOPPING)
def test_the_process_ends_with_75_and_the_script_continues_when_it_runs_again(train, capfd, number):
    before = handling()
    with pytest.raises(SystemExit) as ended:
        train(number)
    assert ended.value.code == 75
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == "mpidl: stopped by a signal, and saved; run the script with resume=True to continue"
    assert handling() == before
    assert train(resume=True)["samples"] == 2 * 101


def test_the_advice_names_the_run_that_is_to_continue(train, tmp_path, capfd):
    (tmp_path / "run").mkdir()
    with pytest.raises(SystemExit):
        train()
    assert "run the script with name='run-2', resume=True to continue" in capfd.readouterr().err


def test_a_script_may_look_at_the_summary(train):
    before = handling()
    summary = train(on_interrupt="return")
    assert summary["interrupted"]
    assert summary["samples"] < 101
    assert handling() == before
    assert not train(on_interrupt="return", resume=True)["interrupted"]


def test_a_script_that_catches_the_exit_has_its_own_handlers_again(train):
    """Also after a second training that is stopped, and one that fails."""
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = handling()
    for number, at in ((signal.SIGTERM, 5), (signal.SIGINT, 12)):
        with pytest.raises(SystemExit):
            train(number, at)
        assert handling() == before
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(mpidl.MpidlError, match="callbacks"):
        train(callbacks=[lambda record: 1 / 0], epochs=1)
    assert handling() == before
    assert received == [signal.SIGTERM] * 2


def test_an_interactive_session_goes_on(train, monkeypatch):
    before = handling()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(KeyboardInterrupt):
        train(signal.SIGINT)
    assert handling() == before


def test_signals_after_a_run_act_as_before_it(train):
    before = handling()
    train(epochs=1, batch=101)
    assert handling() == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_training_in_another_thread_leaves_signals_alone(train):
    before, found = handling(), []

    def target():
        found.append((handling(), train(epochs=1, batch=101)["samples"]))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    assert found == [(before, 101)]
    assert handling() == before


def test_another_word_is_one_line(train):
    with pytest.raises(mpidl.UsageError, match=r"^on_interrupt: expected 'exit' or 'return', found 'stop'$"):
        train(on_interrupt="stop")


@pytest.mark.parametrize("number", [1, 2])
def test_a_signal_while_a_checkpoint_is_written_orders_the_last_one(train, monkeypatch, number):
    """The first checkpoint is that of the beginning, the second the last."""
    complete, written = Checkpoints.complete, []

    def interrupted(*arguments):
        done = complete(*arguments)
        written.append(arguments)
        if len(written) == number:
            signal.raise_signal(signal.SIGTERM)
        return done

    monkeypatch.setattr(Checkpoints, "complete", interrupted)
    summary = train(at=None, on_interrupt="return")
    assert summary["interrupted"]
    assert len(written) == 2
    assert (summary["samples"] < 2 * 101) == (number == 1)


#: A model whose first worker is stopped.
SCRIPT = """
import os, signal
from mpi4py import MPI  # before what it reads at its start is set
import numpy as np
import mpidl

class Model:
    parameters = np.zeros(2)
    calls = 0

    def loss_and_gradient(self, batch):
        self.calls += 1
        if self.calls == 3 and os.environ["OMPI_COMM_WORLD_RANK"] == "2":
            os.kill(os.getpid(), signal.SIGTERM)
        return 0.0, np.ones(2)

    def evaluate(self, batch):
        return 0.0, 0

mpidl.train(Model(), mpidl.Digits(), batch=1, epochs=1000)
print("not stopped")
"""


def test_all_ranks_of_a_script_end(bare_environment, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    words, environment = command(3, [str(tmp_path / "script.py")])
    ended = subprocess.run(
        words, cwd=tmp_path, env={**environment, **bare_environment}, capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stdout) == (75, ""), ended.stderr
    assert "; run the script with resume=True to continue\n" in ended.stderr
    assert "UCX" not in ended.stderr
    assert "Traceback" not in ended.stderr
