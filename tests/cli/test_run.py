"""A Python script as a job: ``mpidl run``."""

import subprocess
import sys

import pytest

from mpidl.cli.arguments import parse
from mpidl.launch.script import DONE, JOB

#: Trains a network on each of two folds, and says what it was given and what came out.
FOLDS = """
import os, sys
import numpy as np
import mpidl

class Slow(mpidl.Network):
    def loss_and_gradient(self, batch):
        if "STOP" in os.environ and fold == 1 and batch.number > 5:
            import signal
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().loss_and_gradient(batch)

def main():
    global fold
    os.makedirs("work", exist_ok=True)
    os.chdir("work")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 8)).astype("f4"), random.integers(0, 3, 120)
    for fold in range(2):
        network = Slow([mpidl.Dense(3)], input_shape=(8,))
        data = mpidl.Arrays((x[fold::2], y[fold::2]), (x, y))
        summary = mpidl.train(network, data, epochs=4, batch=4)
        print(fold, summary["run_dir"], summary["samples"], float(np.abs(network.parameters).sum()))
    with open("ended", "a") as file:
        print(*sys.argv[1:], file=file)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "code" / "folds.py"
    path.parent.mkdir()
    path.write_text(FOLDS)
    return path


@pytest.mark.parametrize(
    ("words", "ranks", "script", "arguments"),
    [
        ("x.py -n 4", 4, "x.py", []),
        ("-n 4 x.py --lr 0.1 -n 7", 4, "x.py", ["--lr", "0.1", "-n", "7"]),
        ("x.py -n 4 --lr 0.1 --resume y", 4, "x.py", ["--lr", "0.1", "--resume", "y"]),
        ("-n4 x.py data -n 7", 4, "x.py", ["data", "-n", "7"]),
        ("x.py -n4 -- -n 7 --", 4, "x.py", ["-n", "7", "--"]),
        ("x.py -- -n 7", None, "x.py", ["-n", "7"]),
        ("x.py data", None, "x.py", ["data"]),
        ("--resume runs/x -n 4", 4, None, []),
        ("--resume=runs/x -- 3", None, None, ["3"]),
    ],
)
def test_words_of_the_command_and_of_the_script(words, ranks, script, arguments):
    found = parse(["run", *words.split()])
    assert (found.ranks, found.script and str(found.script)) == (ranks, script)
    assert found.words_of_script == arguments


@pytest.mark.parametrize(("end", "code"), [("", 1), ("raise SystemExit(75)", 75)])
def test_output_of_a_script_that_is_lost_is_reported(bare_environment, tmp_path, end, code):
    (tmp_path / "x.py").write_text(f"print('result')\n{end}\n")
    words = ["sh", "-c", 'exec "$@" > /dev/full', "sh", sys.executable, "-P", "-m", "mpidl", "run", "x.py"]
    environment = bare_environment | {"PYTHONUNBUFFERED": ""}
    ended = subprocess.run(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, timeout=300)
    line = "mpidl: stdout: No space left on device, the output is lost\n"
    assert (ended.returncode, ended.stderr) == (code, line)


def test_a_script_that_is_stopped_continues_its_runs(mpidl, script, tmp_path):
    first = mpidl("run", script, "--fold", "x y", STOP="1", **{JOB: "job", DONE: "done"})
    assert first.returncode == 75, first.stderr
    assert "mpidl: stopped by a signal, and saved; continue with `mpidl run --resume runs/run-2`\n" in first.stderr
    assert [line.split()[:3] for line in first.stdout.splitlines()] == [["0", "runs/run", "240"]]
    assert not (tmp_path / "work" / "ended").exists()
    assert not (tmp_path / "done").exists()
    second = mpidl("run", script, "--fold", "x y", **{JOB: "job", DONE: "done"})
    assert (second.returncode, (tmp_path / "work" / "ended").read_text()) == (0, "--fold x y\n"), second.stderr
    assert (tmp_path / "done").exists()
    assert "runs/run: finished, 4 epochs" in second.stderr
    assert second.stdout.splitlines()[0] == first.stdout.splitlines()[0]
    assert second.stdout.splitlines()[1].startswith("1 runs/run-2 240 ")
    third = mpidl("run", "--resume", "work/runs/run")
    assert third.stdout == second.stdout
    assert sorted(path.name for path in (tmp_path / "work" / "runs").iterdir()) == ["run", "run-2"]
    other = mpidl("run", script)
    assert other.stdout.splitlines()[1].split()[:2] == ["1", "runs/run-4"]
    # The same as without interruption.
    assert other.stdout.split()[3::4] == second.stdout.split()[3::4]
