"""What goes wrong in a job: each test starts an mpirun of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from jobs_apart import EPOCHS, SAMPLES, assert_exact, ended, parameters, process_of_rank, summary_of, trains, wait_for

from mpidl.launch.signals import STOPPING


@pytest.mark.long
def test_three_workers_lose_no_update(job, start, tmp_path):
    process = start("train", job, "-n", 5, "--json", "--set", "algorithm.n_fetch=2", TALLY_SECONDS="0.001")
    assert summary_of(process)["replicas"] == 3
    assert_exact(tmp_path)


def test_a_rank_that_raises_ends_the_job_and_is_named_once(job, start, tmp_path):
    _, errors = ended(start("train", job, "-n", 4, TALLY_FAILS="3"), 1)
    lines = [line for line in errors.splitlines() if "out of luck" in line]
    what = "model: Tally.loss_and_gradient raised RuntimeError: out of luck (MPIDL_DEBUG=1 shows its traceback)"
    assert lines == [f"mpidl: rank 3 (worker 1) failed: {what}"]
    assert "Traceback" not in errors
    events = [json.loads(line) for line in (tmp_path / "runs" / "tally" / "events.jsonl").read_text().splitlines()]
    (failure,) = [event for event in events if event["event"] == "failure"]
    assert (failure["rank"], failure["role"]) == (3, "worker 1")
    assert "tally.py" in failure["traceback"]


@pytest.mark.long
def test_ranks_that_raise_at_a_time_are_one_line(job, start, tmp_path):
    _, errors = ended(start("train", job, "-n", 4, TALLY_FAILS="2,3", TALLY_SECONDS="0.05"), 1)
    assert len([line for line in errors.splitlines() if "out of luck" in line]) == 1
    events = [json.loads(line) for line in (tmp_path / "runs" / "tally" / "events.jsonl").read_text().splitlines()]
    assert {event["rank"] for event in events if event["event"] == "failure"} <= {2, 3}


GRADIENT = "model: Tally.loss_and_gradient raised RuntimeError: no luck at all (MPIDL_DEBUG=1 shows its traceback)"
FACTORY = "model.factory: tally:make raised RuntimeError: no tally (MPIDL_DEBUG=1 shows its traceback)"
NOWHERE, NO_DIRECTORY = "--set=run.dir=/dev/null/runs", "run.dir: can't write in /dev/null/runs/tally: Not a directory"
SERVERS = "topology.servers: 14, expected at most one for each of the model's 13 parameters"


@pytest.mark.parametrize(
    ("words", "fails", "line"),
    [
        ([], "gradient", GRADIENT),
        (["-n", 3], "gradient", f"{GRADIENT} (rank 2, worker 0)"),
        (["-n", 3], "factory", FACTORY),
        ([NOWHERE], "", NO_DIRECTORY),
        ([NOWHERE, "-n", 3], "", NO_DIRECTORY),
        (["--set=topology.servers=14"], "", SERVERS),
    ],
)
def test_what_is_wrong_on_all_ranks_is_one_line(job, start, tmp_path, words, fails, line):
    _, errors = ended(start("train", job, *words, TALLY_FAILS_EVERYWHERE=fails), 2)
    assert [each for each in errors.splitlines() if each.startswith("mpidl: ") and "root" not in each] == [
        f"mpidl: {line}"
    ]
    assert "Traceback" not in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_debugging_shows_where_a_factory_failed(job, start):
    process = start("train", job, "-n", 3, MPIDL_DEBUG="1", TALLY_FAILS_EVERYWHERE="factory")
    assert len(re.findall(r'tally\.py", line \d+, in make', process.communicate(timeout=300)[1])) == 1


def test_a_configuration_that_one_rank_cannot_read_is_named_with_the_rank(job, start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('OMPI_COMM_WORLD_RANK') == '2':\n"
        "    os.makedirs('elsewhere', exist_ok=True); os.chdir('elsewhere')\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    _, errors = ended(start("train", job.name, "-n", 3, PYTHONPATH=path), 2)
    assert [line for line in errors.splitlines() if "root" not in line] == [
        "mpidl: tally.toml: No such file or directory (rank 2)"
    ]


@pytest.mark.parametrize(
    ("rank", "transport"),
    [
        (0, "windows"),
        pytest.param(1, "windows", marks=pytest.mark.long),
        pytest.param(3, "windows", marks=pytest.mark.long),
        pytest.param(0, "messages", marks=pytest.mark.long),
        (1, "messages"),
    ],
)
def test_a_killed_rank_ends_a_job_that_is_not_to_survive(job, start, tmp_path, rank, transport):
    settings = ("--set=run.epochs=100000", f"--set=topology.transport={transport}", "--set=topology.survive=off")
    process = start("train", job, "-n", 4, *settings, TALLY_SECONDS="0.001")
    wait_for(lambda: trains(tmp_path))
    os.kill(process_of_rank(rank, tmp_path), signal.SIGKILL)
    killed = time.monotonic()
    _, errors = ended(process, 1)
    assert time.monotonic() - killed < 60  # 10 on a quiet machine
    assert process_of_rank(2, tmp_path) is None
    role = ("coordinator", "server 0", "worker 0", "worker 1")[rank]
    assert errors.splitlines()[-1] == f"mpidl: rank {rank} ({role}) was killed by SIGKILL"


@pytest.mark.long
def test_a_killed_rank_is_a_restart_that_uses_every_sample_exactly_once(job, start, tmp_path):
    process = start("train", job, "-n", 4, "--retries", 1, "--json", "--set=topology.survive=off", TALLY_SECONDS="0.02")
    wait_for(lambda: trains(tmp_path))
    time.sleep(0.5)
    os.kill(process_of_rank(2, tmp_path), signal.SIGKILL)
    output, errors = ended(process)
    (line,) = [line for line in errors.splitlines() if "SIGKILL" in line]
    assert re.fullmatch(
        r"mpidl: rank 2 \(worker 0\) was killed by SIGKILL; attempt 2 of 2 resumes from step \d+ of runs/tally", line
    )
    (summary,) = map(json.loads, output.splitlines())
    assert (summary["failures"], summary["recoveries"], summary["samples"]) == (1, 1, EPOCHS * SAMPLES)
    assert_exact(tmp_path)


def stop(start, job, directory, number, transport="windows"):
    """Stop a job in the middle by a signal, and check that it says so."""
    process = start("train", job, "-n", 4, "--json", "--set", f"topology.transport={transport}", TALLY_SECONDS="0.02")
    wait_for(lambda: trains(directory))
    time.sleep(0.4)
    process.send_signal(number)
    summary = summary_of(process, 75)
    assert summary["interrupted"]
    assert 0 < summary["samples"] < EPOCHS * SAMPLES


@pytest.mark.parametrize(
    ("number", "transport"),
    [pytest.param(signal.SIGINT, "windows", marks=pytest.mark.long), (signal.SIGTERM, "messages")],
)
def test_a_signal_saves_and_a_resumed_run_uses_every_sample_exactly_once(job, start, tmp_path, number, transport):
    stop(start, job, tmp_path, number, transport)
    rest = summary_of(start("train", "--resume", "runs/tally", "-n", 5, "--set", "topology.servers=3", "--json"))
    assert rest["servers"] == 3
    assert rest["samples"] == EPOCHS * SAMPLES
    assert_exact(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", sorted({*STOPPING} - {signal.SIGINT, signal.SIGTERM}))
def test_other_signals_save_too(job, start, tmp_path, number):
    stop(start, job, tmp_path, number)
    assert np.all(parameters(tmp_path) < 0)


def test_a_signal_to_one_process_alone_saves_too(job, start, tmp_path):
    process = start("train", job, "--json", TALLY_SECONDS="0.02")
    wait_for(lambda: trains(tmp_path))
    process.terminate()
    assert summary_of(process, 75)["samples"] < EPOCHS * SAMPLES
    assert summary_of(start("train", "--resume", "runs/tally", "--json"))["samples"] == EPOCHS * SAMPLES
    assert_exact(tmp_path)


def test_a_full_disk_is_one_line(tmp_path, bare_environment):
    layers = "".join(f'[[model.layer]]\ntype = "dense"\nunits = {units}\n' for units in (3000, 10))
    (tmp_path / "digits.toml").write_text(f'[data]\nsource = "digits"\n[device]\nkind = "cpu"\n{layers}')
    limited = subprocess.run(
        ["bash", "-c", f"ulimit -f 400; exec {sys.executable} -m mpidl train digits.toml"],
        cwd=tmp_path, env=bare_environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert limited.returncode == 1
    size, *rest = limited.stderr.splitlines()
    assert size.endswith("  runs/digits: 225,010 parameters (900 kB)")
    (line,) = rest
    assert re.fullmatch(r"mpidl: runs/digits/checkpoints/\.1-\w+/shard-0\.h5: can't be written: File too large", line)
    assert not list((tmp_path / "runs" / "digits" / "checkpoints").glob("[0-9]*"))


def test_a_launcher_of_another_mpi_is_one_line(job, start):
    _, errors = ended(start("train", job, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4"), 2)
    (line,) = errors.splitlines()
    assert "OMPI_COMM_WORLD_SIZE" in line
    assert "4" in line


@pytest.mark.parametrize(
    "name", ["sync", *(pytest.param(name, marks=pytest.mark.long) for name in ("averaging", "hogwild"))]
)
def test_a_run_without_servers_stops_at_a_signal_and_goes_on_too(job, start, tmp_path, name):
    algorithm = ("--set", f"algorithm.name={name}", "--set", "server.rule=default")
    process = start("train", job, "-n", 4, "--json", *algorithm, TALLY_SECONDS="0.02")
    wait_for(lambda: trains(tmp_path))
    time.sleep(0.4)
    process.send_signal(signal.SIGTERM)
    summary = summary_of(process, 75)
    assert 0 < summary["samples"] < EPOCHS * SAMPLES

    rest = summary_of(start("train", "--resume", "runs/tally", "-n", 3, "--json"))
    assert (rest["servers"], rest["replicas"]) == (0, 2)
    assert rest["samples"] == EPOCHS * SAMPLES


def test_a_killed_worker_ends_a_run_without_servers(job, start, tmp_path):
    settings = ("--set", "run.epochs=100000", "--set", "algorithm.name=sync")
    process = start("train", job, "-n", 4, *settings, TALLY_SECONDS="0.001")
    wait_for(lambda: trains(tmp_path))
    os.kill(process_of_rank(2, tmp_path), signal.SIGKILL)
    killed = time.monotonic()
    process.communicate(timeout=300)
    assert process.returncode == 1
    assert time.monotonic() - killed < 60  # 10 on a quiet machine
