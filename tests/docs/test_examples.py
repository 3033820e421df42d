"""The scripts of the manual: they train, they are as short as the manual says."""

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpidl.launch.command import command
from rows import long_but

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.parametrize(("name", "most"), [("digits", 10), ("distillation", 12), ("actor_critic", 12), ("gan", 12)])
def test_few_lines_change(name, most):
    plain, job = ((EXAMPLES / each).read_text().splitlines() for each in (f"{name}.py", f"{name}_mpidl.py"))
    assert len(plain) >= 50
    blocks = [block for block in difflib.SequenceMatcher(None, plain, job, False).get_opcodes() if block[0] != "equal"]
    # The first line is the scripts' own description.
    changed = sum(max(end - start, stop - first) for _, start, end, first, stop in blocks if start > 0)
    assert changed <= most


def test_the_job_trains(tmp_path):
    pytest.importorskip("torch")
    words = [sys.executable, str(EXAMPLES / "digits_mpidl.py")]
    environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parents[1] / "src")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    accuracy = done.stdout.split()[-1]
    assert done.stdout.startswith("test accuracy "), done.stderr
    assert float(accuracy) > 0.93
    assert (tmp_path / "digits.pt").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "reaches"),
    [
        ("distillation", lambda job, plain: job > plain - 0.01),
        ("actor_critic", lambda job, plain: job > 0.95 * plain),
        ("gan", lambda job, plain: job < 1.1 * plain),
    ],
)
def test_a_loop_on_ranks_reaches_the_figure_of_the_plain_one(tmp_path, name, reaches):
    pytest.importorskip("torch")

    def figure(words):
        environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return float(done.stdout.split()[2].rstrip(","))

    plain = figure([sys.executable, str(EXAMPLES / f"{name}.py")])
    job = figure([sys.executable, "-m", "mpidl", "run", str(EXAMPLES / f"{name}_mpidl.py"), "-n", "4"])
    assert reaches(job, plain), (job, plain)


@pytest.mark.parametrize("ranks", long_but([3], [2, 3, 6]))
def test_downpour_in_one_file_trains(ranks):
    script = EXAMPLES / "downpour_mpi4py.py"
    assert len(script.read_text().splitlines()) <= 200
    words, environment = command(ranks, [str(script)])
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step ")]
    accuracy = float(done.stdout.split()[-1])
    assert losses[-1] < losses[0] / 2
    assert accuracy > 0.94


def test_one_push_prints_what_the_tour_shows():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "one_push.py")], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == (EXAMPLES / "one_push.txt").read_text()
