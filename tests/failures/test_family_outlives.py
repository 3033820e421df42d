"""A worker of any kind of job dies: others go on, or the job starts again by itself, and ends with its accuracy."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mpidl
from mpidl.config import toml

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
#: Of each kind of job: what makes it from the digits, section by section, and what becomes of it.
KINDS = {
    "downpour": ({}, "taken over"),
    "ssp": ({"algorithm": {"name": "ssp"}}, "taken over"),
    "easgd": ({"algorithm": {"name": "easgd"}}, "taken over"),
    "softsync": ({"algorithm": {"name": "softsync"}}, "taken over"),
    "backup_sync": ({"algorithm": {"name": "backup_sync"}}, "restarted"),
    "diloco": ({"algorithm": {"name": "diloco"}}, "restarted"),
    "sandblaster": ({"algorithm": {"name": "sandblaster"}, "run": {"epochs": 60}}, "restarted"),
    "cut model": ({"topology": {"partitions": 2}}, "restarted"),
    "batch normalisation": (
        {"model": {"factory": "torch_modules:noisy", "loss": "cross_entropy"}, "run": {"epochs": 10}},
        "taken over",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_whose_worker_dies_comes_to_its_end(kind, bare_environment, tmp_path):
    if kind == "batch normalisation":
        pytest.importorskip("torch")
    sections, expected = KINDS[kind]
    job = tomllib.loads((ROOT / "jobs" / "digits.toml").read_text()) | {"server": {}} | sections
    job["run"] = {"epochs": 30, "dir": str(tmp_path / "runs")} | job["run"]
    (tmp_path / "job.toml").write_text(toml.dump(job | {"checkpoint": {"every": 1.0}}))
    words = [sys.executable, "-m", "mpidl", "train", tmp_path / "job.toml", "-n", "6", "--retries", "1", "--json"]
    variables = bare_environment | {"MPIDL_DIE": "5:gradient-computed:20", "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["test_accuracy"] > 0.85, done.stderr
    events = [json.loads(line) for line in (tmp_path / "runs" / "job" / "events.jsonl").read_text().splitlines()]
    assert summary["failures"] == sum(event["event"] == "failure" for event in events) >= 1
    recoveries = [event for event in events if event["event"] == "recovery"]
    found = "restarted" if any(event.get("what") == "restart" for event in recoveries) else "taken over"
    assert (bool(recoveries), found) == (True, expected), done.stderr
    ranks = mpidl.open(tmp_path / "runs" / "job").status["ranks"]
    dead = [(each["rank"], each["state"]) for each in ranks if each["process"] != each["rank"]]
    assert dead == ([(5, "dead")] if expected == "taken over" else [])


#: A script whose model has a buffer, which counts the batches of its replica.
BUFFERED = """
import pathlib
import numpy as np
import mpidl
from beside import Beside
from mpidl.launch.environment import world

random = np.random.default_rng(0)
x = random.normal(size=(96, 2)).astype(np.float32)
data = mpidl.Arrays((x, np.arange(96) % 3), (x[:16], np.arange(16) % 3))
model = Beside()
mpidl.train(model, data, epochs=40, batch=8, rule=mpidl.Sgd(0.1), dir="runs", name="run")
pathlib.Path(f"seen-{world().rank}").write_text(str(int(model.seen)))
"""


def test_after_a_death_the_model_of_every_rank_has_the_buffers_of_one_replica(bare_environment, tmp_path):
    (tmp_path / "buffered.py").write_text(BUFFERED)
    words = [sys.executable, "-m", "mpidl", "run", "buffered.py", "-n", "4"]
    variables = bare_environment | {"MPIDL_DIE": "2:gradient-computed:20", "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 2 (worker 0) goes on, taken over by the process of rank 3" in done.stderr
    seen = {path.name: int(path.read_text()) for path in tmp_path.glob("seen-*")}
    assert seen.keys() == {"seen-0", "seen-1", "seen-3"}
    assert len({*seen.values()}) == 1 < min(seen.values()), seen
