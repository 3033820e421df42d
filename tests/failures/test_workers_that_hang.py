"""Workers that hang for ever in a batch: checkpoints don't wait for them, and a signal ends the job in time."""

import json
import os
import signal
import time

import pytest
from counting import Case, examine
from jobs_apart import ended, process_of_rank, processes_of_ranks, wait_for

#: Counts samples. One rank hangs in a batch, or in an evaluation, if the environment says so; then it says that it
#: does. Ranks need not wait for it for long.
HANGS = """
import os, time
from pathlib import Path
import counting
from mpidl.engines.mpi import group
from mpidl.roles import checkpoint_coordinator

checkpoint_coordinator.MARKED_AFTER, checkpoint_coordinator.TIMES, group.SAID_AFTER = 0.3, 0, 0.1
RANK, WHERE, WHEN = os.environ.get("HANGS", "0:none:0").split(":")

calls = 0

def hang(model, where):
    global calls
    calls += where == WHERE and Path("runs/counting/checkpoints/0").exists()  # not in a rehearsal
    if (model._rank, where, calls) == (int(RANK), WHERE, int(WHEN)):
        Path("hangs").touch()
        while not Path("goes-on").exists():
            time.sleep(0.05)

def hanging(method, where):
    def called(self, batch):
        hang(self, where)
        return method(self, batch)
    return called

for model in (counting.Counting, counting.CountingRows):
    for name, where in (("loss_and_gradient", "batch"), ("evaluate", "evaluation")):
        if name in vars(model):
            setattr(model, name, hanging(getattr(model, name), where if model is counting.Counting else "rows"))
make = counting.make
"""


@pytest.fixture
def hangs(start, tmp_path):
    """Return a function that starts a job in which a rank hangs."""
    (tmp_path / "hanging.py").write_text(HANGS)

    def run(case, where, *words, ranks=4, **variables):
        config = case.write(tmp_path)
        environment = case.environment(tmp_path, 2) | {"HANGS": where} | variables
        environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
        words = ["--set=model.factory=hanging:make", "--set=checkpoint.every=0.4", *words]
        return start("train", config, "-n", ranks, *words, **environment)

    return run


def checkpoints(tmp_path):
    found = (tmp_path / "runs" / "counting" / "checkpoints").glob("[0-9]*")
    return sorted(found, key=lambda path: int(path.name))


def times(tmp_path):
    return [path.stat().st_mtime for path in checkpoints(tmp_path)]


def assert_exact(tmp_path, case, whole=False):
    found = [examine(path, case) for path in checkpoints(tmp_path)]
    assert [(each.step, each.fault) for each in found if each.fault] == []
    if whole:
        last = examine(checkpoints(tmp_path)[-1], case, whole=True)
        assert (last.fault, last.lost, last.doubled) == ("", 0, 0)


def assert_resumes(tmp_path, hangs, case, *words, ranks=4):
    """Check that all checkpoints are exact, that the run goes on, and that no sample is lost or doubled at its end."""
    assert_exact(tmp_path, case)
    resumed = hangs(case, "0:none:0", "--resume=runs/counting", *words, ranks=ranks)
    ended(resumed)
    assert_exact(tmp_path, case, whole=True)


@pytest.mark.parametrize(
    ("algorithm", "servers", "tables"),
    [
        ({"name": "downpour", "n_push": 3}, 1, None),
        pytest.param({"name": "downpour", "n_push": 3}, 2, {}, marks=pytest.mark.long),
        pytest.param({"name": "ssp", "bound": 2}, 1, None, marks=pytest.mark.long),  # The others wait for it.
    ],
)
def test_checkpoints_go_on_and_a_signal_ends_the_job(hangs, tmp_path, algorithm, servers, tables):
    case = Case("hangs", algorithm, tables=tables, epochs=6)
    rank = 2 + servers
    process = hangs(case, f"{rank}:batch:10", f"--set=topology.servers={servers}", ranks=rank + 1)
    wait_for((tmp_path / "hangs").exists)
    before = time.time()
    wanted = 1 if algorithm["name"] == "ssp" else 3
    wait_for(lambda: sum(each > before for each in times(tmp_path)) >= wanted)
    process.terminate()
    _, errors = ended(process, 75)
    assert f"not waiting any longer for rank {rank} (worker 1) on " in errors
    assert ", in one batch (the model or its data) for " in errors
    assert_resumes(tmp_path, hangs, case, "--set=topology.servers=2")


@pytest.mark.parametrize("nodes", ["1", pytest.param("4", marks=pytest.mark.long)])
def test_what_a_worker_pushes_when_it_comes_back_counts_once(hangs, tmp_path, nodes):
    case = Case("hangs", {"name": "downpour", "n_push": 3}, epochs=8)
    process = hangs(case, "3:batch:10", MPIDL_RANKS_PER_NODE=nodes)
    wait_for((tmp_path / "hangs").exists)
    before = time.time()
    wait_for(lambda: sum(each > before for each in times(tmp_path)) >= 2)
    (tmp_path / "goes-on").touch()
    ended(process)
    assert_exact(tmp_path, case, whole=True)


@pytest.mark.long
def test_a_stopped_worker_of_another_node(hangs, tmp_path):
    case = Case("hangs", epochs=6)
    process = hangs(case, "0:none:0", "--set=checkpoint.patience=20", MPIDL_RANKS_PER_NODE="1")
    wait_for(lambda: len(times(tmp_path)) > 1)
    os.kill(process_of_rank(3, tmp_path), signal.SIGSTOP)
    before = time.time()
    wait_for(lambda: sum(each > before for each in times(tmp_path)) >= 2)
    process.terminate()
    _, errors = ended(process, 75)
    assert "not waiting any longer for rank 3 (worker 1) on " in errors
    assert_resumes(tmp_path, hangs, case)


@pytest.mark.parametrize(
    ("algorithm", "where", "settings"),
    [
        pytest.param({"name": "downpour"}, "3:evaluation:1", [], marks=pytest.mark.long),
        pytest.param({"name": "downpour"}, "3:batch:10", ["run.deterministic=true"], marks=pytest.mark.long),
        ({"name": "sync"}, "2:batch:10", []),
    ],
)
def test_a_signal_ends_what_cannot_be_saved(hangs, tmp_path, algorithm, where, settings):
    """The newest checkpoint is kept where none can be made any more; an evaluation holds up none."""
    case = Case("hangs", algorithm, epochs=6)
    words = [f"--set={each}" for each in [*settings, "checkpoint.patience=2"]]
    process = hangs(case, where, *words)
    wait_for((tmp_path / "hangs").exists)
    time.sleep(2)
    process.terminate()
    _, errors = ended(process, 75)
    rank, what, _ = where.split(":")
    doing = "in an evaluation" if what == "evaluation" else "in one batch (the model or its data)"
    assert errors.count("not waiting") == 1, errors
    line = next(each for each in errors.splitlines() if "not waiting" in each)
    assert f"rank {rank} (worker " in line
    assert f", {doing} for " in line
    assert line.count("(worker ") == 1, line
    assert checkpoints(tmp_path)


@pytest.mark.long
def test_mirrors_go_on(hangs, tmp_path):
    case = Case("hangs", {"name": "downpour", "n_push": 3}, epochs=10)
    words = ["--set=topology.mirror=0.5", "--set=checkpoint.every=100"]
    process = hangs(case, "3:batch:10", *words, MPIDL_RANKS_PER_NODE="2")
    wait_for((tmp_path / "hangs").exists)
    events, before = tmp_path / "runs" / "counting" / "events.jsonl", time.time()

    def mirrors():
        found = map(json.loads, events.read_text().splitlines())
        return [each for each in found if each.get("mirror") and each["time"] > before]

    wait_for(lambda: len(mirrors()) >= 3)
    for each in (process.pid, *processes_of_ranks(tmp_path).values()):
        os.kill(each, signal.SIGKILL)
    process.communicate(timeout=300)
    assert_resumes(tmp_path, hangs, case)


@pytest.mark.long
def test_a_worker_that_hangs_in_its_first_batches_is_replaced_if_that_is_asked_for(hangs, tmp_path):
    case = Case("hangs", epochs=6)
    process = hangs(case, "3:batch:2", "--set=run.hang_after=1.5")
    _, errors = ended(process)
    assert "rank 3 (worker 1) hangs in a batch" in errors
    assert "rank 3 (worker 1) goes on, taken over by the process of rank 2" in errors
    assert_exact(tmp_path, case, whole=True)
