"""Jobs whose model has tables: ranks that die, rows that go wrong, and tables larger than a worker's memory."""

import json
import os
import signal

import h5py
import numpy as np
import pytest
from counting import NAME, Case, examine
from outcomes import read_events
from running_job import RunningJob

from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.table_files import saved_tables

pytestmark = pytest.mark.long
SAMPLES, IDS, BATCH, DIMENSION = 80_000, 8, 500, 256
#: Bytes of the rows of all ids, without their ids and order.
LARGE = 4 * SAMPLES * IDS * DIMENSION
#: A model whose rows count their ids. The address space of its worker gets a limit at the fourth batch, or that of the
#: first server at the start, by a number of bytes beyond what it has then.
MODEL = """
import os, resource
import numpy as np
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters import Layout
from mpidl.tables.lookups import TableSpec, Wanted

class Rows(CompleteModel):
    dtype = np.dtype(np.float32)
    takes_integers = True
    rows_of_table = os.environ.get("ROWS_OF_TABLE")
    tables = (TableSpec("users", int(os.environ["ROWS_DIMENSION"]), rows_of_table and int(rows_of_table), scale=0.0),)

    def __init__(self):
        self.parameters = np.zeros(5, np.float32)
        self.layout = Layout([("count", (5,))])
        self.batches = 0

    def wanted(self, batch):
        return None

    def loss_and_gradient(self, batch):
        self.batches += 1
        if self.batches == 4 and "ROWS_ROOM" in os.environ:
            limit = present() + int(os.environ["ROWS_ROOM"])
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        found = self.rows.look_up(0, self.tables[0].checked(batch.inputs))
        gradient = np.full(found.rows.shape, -1, np.float32)
        gradient[found.ids == int(os.environ.get("ROWS_NAN", -1))] = np.nan
        found.gradient = gradient
        return 0.0, np.full(5, -float(len(batch.inputs)), np.float32)

    def evaluate(self, batch):
        return Evaluation(0.0, float("nan"))

def present():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()

def make(dataset, seed):
    if "ROOM_OF_SERVER" in os.environ and os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
        limit = present() + int(os.environ["ROOM_OF_SERVER"])
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return Rows()
"""
#: Limits the address space of servers: of ranks 1 to 3.
LIMITED = """
import os, resource
if os.environ.get("OMPI_COMM_WORLD_RANK") in ("1", "2", "3") and "LIMIT_OF_SERVERS" in os.environ:
    limit = int(os.environ["LIMIT_OF_SERVERS"])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""


@pytest.fixture
def train(start, tmp_path):
    """Train on distinct ids; return the exit code, the JSON output and the errors."""
    (tmp_path / "users.py").write_text(MODEL)
    (tmp_path / "sitecustomize.py").write_text(LIMITED)

    def run(ranks, servers, *settings, samples=SAMPLES, dimension=DIMENSION, **variables):
        ids = np.random.default_rng(0).permutation(samples * IDS).reshape(samples, IDS)
        with h5py.File(tmp_path / "ids.h5", "w") as file:
            for split, part in (("train", ids), ("test", ids[:8])):
                file[f"{split}/x"], file[f"{split}/y"] = part, np.zeros((len(part), 1), np.float32)
        (tmp_path / "users.toml").write_text(
            f"""
            [run]
            epochs = 1
            [data]
            source = "hdf5"
            path = "ids.h5"
            batch = {BATCH}
            portion = {BATCH}
            [model]
            factory = "users:make"
            [server]
            rule = "sgd"
            rate = 1.0
            [topology]
            servers = {servers}
            """
        )
        words = [word for setting in settings for word in ("--set", setting)]
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        variables |= {"PYTHONPATH": path, "ROWS_DIMENSION": str(dimension), "MALLOC_ARENA_MAX": "1"}
        process = start("train", "users.toml", "-n", ranks, "--json", *words, **variables)
        output, errors = process.communicate(timeout=300)
        return process.returncode, output, errors

    return run


def test_a_table_larger_than_a_workers_memory(train, tmp_path):
    room = 200 << 20
    code, output, errors = train(5, 3, ROWS_ROOM=str(room), LIMIT_OF_SERVERS=str(4 << 30))
    assert code == 0, errors
    assert 3 * room < LARGE
    summary = json.loads(output.splitlines()[-1])
    assert (summary["servers"], summary["rows"]) == (3, SAMPLES * IDS)
    last = max((tmp_path / "runs/users/checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    assert [each.rows for each in saved_tables(Checkpoint(last))["users"].parts] == pytest.approx(
        [SAMPLES * IDS / 3] * 3, rel=0.01
    )


def said(errors):
    """Return the lines of an error."""
    return [line for line in errors.splitlines() if line.startswith(("mpidl: ", "Traceback")) and "as root" not in line]


SMALL = {"samples": 20_000, "dimension": 4}


def test_an_id_beyond_the_table(train):
    code, _, errors = train(4, 1, ROWS_OF_TABLE="159999", **SMALL)
    assert code not in (0, None)
    (line,) = said(errors)
    assert ", worker " in line or "(worker " in line
    assert "table users: an id of 159999, expected 0 to 159998" in line


def test_a_gradient_that_is_nan(train):
    code, _, errors = train(4, 1, ROWS_NAN="77", **SMALL)
    assert code not in (0, None)
    (line,) = said(errors)
    assert "rows of table 'users'" in line
    assert "are NaN or infinite" in line
    code, output, errors = train(4, 1, "run.terminate_on_nan=false", "run.name='on'", ROWS_NAN="77", **SMALL)
    assert code == 0, errors
    assert json.loads(output.splitlines()[-1])["rows"] == SMALL["samples"] * IDS


def test_a_table_for_which_a_server_has_no_memory(train):
    code, _, errors = train(4, 1, samples=40_000, ROOM_OF_SERVER=str(200 << 20))
    assert code not in (0, None)
    (line,) = said(errors)
    assert "server" in line
    assert "table users: full with " in line
    assert "set max_rows" in line


def newest(run):
    """Return the step of the last checkpoint."""
    return max((int(path.name) for path in (run / "checkpoints").glob("[0-9]*")), default=0)


def test_deaths_of_a_server_and_of_a_worker_are_restarts(bare_environment, tmp_path):
    case = Case("deaths, tables", {"name": "downpour", "n_push": 3}, servers=(2,), replicas=(2,), tables={})
    words = ["train", case.write(tmp_path), "-n", 5, "--retries", 2, "--json", "--set=topology.servers=2"]
    variables = case.environment(tmp_path, 2) | {"MPIDL_DIE": "1:chunk-noted:50"}
    run = tmp_path / "runs" / NAME
    with RunningJob([*words, "--set=checkpoint.every=0.2"], tmp_path, bare_environment | variables) as job:
        assert job.wait_for(lambda: any(event["event"] == "recovery" for event in read_events(run)))
        before = newest(run)
        assert job.wait_for(lambda: newest(run) > before)
        for process in job.processes(4):
            os.kill(process, signal.SIGKILL)
        assert job.wait() == 0, job.last_words()
        said = job.output.read_text()
    events = [event for event in read_events(run) if event["event"] in ("failure", "recovery")]
    assert [event["rank" if event["event"] == "failure" else "what"] for event in events] == [
        1,
        "restart",
        4,
        "restart",
    ]
    assert "a rank's death ends the run: the model's tables lie in the memory of servers'" in said
    checked = examine(run / "checkpoints" / str(newest(run)), case, whole=True)
    assert (checked.fault, checked.lost, checked.doubled) == ("", 0, 0)


def test_without_retries_a_death_ends_a_job_with_tables(bare_environment, tmp_path):
    case = Case("death, tables", servers=(1,), replicas=(2,), tables={})
    words = ["train", case.write(tmp_path), "-n", 4, "--set=topology.survive=auto"]
    variables = case.environment(tmp_path, 2) | {"MPIDL_DIE": "3:gradient-computed:20"}
    with RunningJob(words, tmp_path, bare_environment | variables) as job:
        assert job.wait() == 1
        assert job.last_words() == (
            "mpidl: rank 3 (worker 1) was killed by SIGKILL, which ends the job: the model's tables lie in the memory "
            "of servers' processes"
        )
