"""Scripts under ``mpidl run -n``: stopping by signals, resuming, and one report of an exception or an exit code."""

import json
import signal

import h5py
import pytest
from jobs_apart import ended, newest, wait_for

SAMPLES, EPOCHS, RANKS = 101, 6, 3
#: Counts in two trainings how often each sample was applied. Ranks may raise or exit at a moment.
SCRIPT = """
import os, sys, time

moment, ranks, act = sys.argv[1:4]
rank = os.environ["OMPI_COMM_WORLD_RANK"]

def give_up():
    if act == "raise":
        raise ImportError("no module torchh")
    sys.exit("no luck" if act == "text" else 3)

def at(present):
    if present == moment and rank in ranks:
        print("at", present)
        give_up()

at("start")
from mpi4py import MPI
import numpy as np
import mpidl

class Counting:
    def __init__(self):
        self.parameters = np.zeros(101)

    def loss_and_gradient(self, batch):
        time.sleep(float(os.environ.get("SECONDS", 0)))
        return 0.0, -np.bincount(batch.inputs[:, 0].astype(int), minlength=101).astype(float)

numbers = np.arange(101, dtype=np.float32)[:, None], np.zeros((101, 1), np.float32)
options = {"rule": mpidl.Sgd(1.0), "batch": 4, "portion": 12}
for epochs in (1, 6):
    model = Counting()
    mpidl.train(model, mpidl.Arrays(numbers, numbers), epochs=epochs, **options)
    assert np.all(model.parameters == epochs)
    at("end")
open(f"ended-{rank}", "w").close()
"""


@pytest.fixture
def run(start, tmp_path):
    """Starts the script on three ranks."""
    (tmp_path / "counting.py").write_text(SCRIPT)
    return lambda *words, **variables: start("run", "counting.py", "-n", RANKS, *words, **variables)


def test_a_signal_stops_it_and_it_continues(start, run, tmp_path):
    process = run("never", "", "", SECONDS="0.02")
    second = tmp_path / "runs" / "run-2"
    wait_for(lambda: (second / "checkpoints" / "0").exists())
    process.send_signal(signal.SIGTERM)
    _, errors = ended(process, 75)
    assert f"continue with `mpidl run --resume runs/run-2 -n {RANKS}`\n" in errors
    assert "ucx" not in errors
    assert not list(tmp_path.glob("ended-*"))
    _, errors = ended(start("run", "--resume", "runs/run-2", "-n", RANKS))
    assert errors.count("runs/run: finished, 1 epochs; nothing is left to train") == 1
    assert len(list(tmp_path.glob("ended-*"))) == RANKS
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["run", "run-2"]
    summary = json.loads((second / "summary.json").read_text())
    assert (summary["interrupted"], summary["samples"]) == (False, EPOCHS * SAMPLES)
    with h5py.File(newest(second) / "index.h5") as index:
        assert set(index["parameters/parameters"][...]) == {EPOCHS}
    assert summary["command"] == f"mpidl run --resume runs/run-2 -n {RANKS}"


@pytest.mark.parametrize(
    ("moment", "ranks", "act", "said"),
    [
        ("start", "012", "raise", "rank 0 raised ImportError, which ends the job"),
        pytest.param("end", "1", "raise", "rank 1 raised ImportError, which ends the job", marks=pytest.mark.long),
        pytest.param("start", "2", "raise", "rank 2 raised ImportError, which ends the job", marks=pytest.mark.long),
        pytest.param("start", "012", "text", "no luck", marks=pytest.mark.long),
        pytest.param("end", "2", "code", "the script ended with exit code 3", marks=pytest.mark.long),
    ],
)
def test_what_it_raises_is_said_once(run, tmp_path, moment, ranks, act, said):
    process = run(moment, ranks, act)
    output, errors = ended(process, 1)
    assert f"at {moment}\n" in output
    assert errors.count(f"mpidl: {said}\n") == 1
    assert errors.count("Traceback") == (act == "raise")
    if act == "raise":
        trace = errors[errors.index("Traceback") :]
        assert trace.startswith(f'Traceback (most recent call last):\n  File "{tmp_path / "counting.py"}", line ')
        assert f'    at("{moment}")\n' in trace
        assert trace.endswith(f"ImportError: no module torchh\nmpidl: {said}\n")
