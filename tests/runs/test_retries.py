"""Jobs that failed and start again: when, from where, and what is said and recorded of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpidl.cli import main
from mpidl.launch.forwarding import Ended
from mpidl.launch.job_output import Cause
from mpidl.runs.retries import Retries

KILLED = Cause("rank 2 (worker 0) was killed by SIGKILL", 2, "worker 0")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's directory, as the launcher hears of it; its events."""
    monkeypatch.chdir(tmp_path)
    directory = Path("runs/digits")
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "events.jsonl").touch()
    return directory


def events(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def save(run, step):
    (run / "checkpoints" / str(step)).mkdir()


def failed(*runs, line=KILLED.line, cause=KILLED):
    return Ended(1, line, cause, True, runs)


def test_a_training_goes_on_in_its_run_from_the_newest_checkpoint(run, capfd):
    save(run, 40)
    save(run, 120)
    again = Retries(3, ["train", "digits.toml", "--set=run.epochs=3", "--resume=runs/old", "--json"]).after(failed(run))
    assert again == ["train", "digits.toml", "--set=run.epochs=3", "--json", "--resume=runs/digits"]
    line = "rank 2 (worker 0) was killed by SIGKILL; attempt 2 of 4 resumes from step 120 of runs/digits"
    assert capfd.readouterr().err == f"mpidl: {line}\n"
    failure, recovery = events(run)
    assert (failure["event"], failure["rank"], failure["role"]) == ("failure", 2, "worker 0")
    assert (recovery["event"], recovery["what"], recovery["step"]) == ("recovery", "restart", 120)


def test_a_failure_that_a_rank_has_recorded_is_not_recorded_again(run):
    Retries(1, ["train"]).after(failed(run, line="", cause=Cause("rank 3 (worker 1) failed")))
    assert [each["event"] for each in events(run)] == ["recovery"]
    Retries(1, ["train"]).after(failed(run, line=""))
    assert [each["event"] for each in events(run)] == ["recovery", "failure", "recovery"]


def test_a_rank_that_died_at_a_point_does_not_die_there_again(run, monkeypatch):
    monkeypatch.setenv("MPIDL_DIE", "2:trained:1")
    Retries(1, ["train"]).after(failed(run))
    assert "MPIDL_DIE" not in os.environ


def test_before_there_is_a_checkpoint_or_a_run_it_begins_anew(run, capfd):
    retries = Retries(3, ["train", "digits.toml"])
    assert retries.after(failed()) == ["train", "digits.toml"]
    assert retries.after(failed(run)) == ["train", "digits.toml", "--resume=runs/digits"]
    assert [line.partition("; ")[2] for line in capfd.readouterr().err.splitlines()] == [
        "attempt 2 of 4 starts from the beginning", "attempt 3 of 4 starts from the beginning"
    ]  # fmt: skip


def test_a_job_that_fails_before_it_has_gone_on_leaves_its_run_to_the_next(run, capfd):
    save(run, 40)
    retries = Retries(3, ["train", "digits.toml"])
    resumed = ["train", "digits.toml", "--resume=runs/digits"]
    assert [retries.after(failed(run)), retries.after(failed())] == [resumed] * 2
    assert capfd.readouterr().err.splitlines()[-1].endswith("attempt 3 of 4 resumes from step 40 of runs/digits")


def test_failures_without_a_new_checkpoint_come_to_an_end_and_one_gives_the_retries_back(run, capfd):
    retries = Retries(2, ["train"])
    for step in (10, 20, None, 30, None):
        if step is not None:
            save(run, step)
        assert retries.after(failed(run)) is not None
    attempts = [line.split("attempt ")[1].split(" of ")[0] for line in capfd.readouterr().err.splitlines()]
    assert attempts == ["2", "2", "3", "2", "3"]
    assert retries.after(failed(run)) is None
    assert capfd.readouterr().err == "mpidl: 3 attempts without a new checkpoint have failed\n"


def test_a_script_starts_again_as_it_was_and_all_its_runs_count(run, capfd):
    retries = Retries(1, ["run", "train.py", "--", "--resume=x"])
    save(run, 10)
    other = Path("runs/other")
    for _ in range(2):
        assert retries.after(failed(run, other)) == ["run", "train.py", "--", "--resume=x"]
        save(run, 20 + len(list(run.glob("checkpoints/*"))))
    assert retries.after(failed(run, other)) is not None
    assert retries.after(failed(run, other)) is None


@pytest.mark.parametrize("words", [["train", "digits.toml"], ["run", "train.py"]])
def test_retries_are_those_of_a_launcher(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main([words[0], "--retries", "2", words[1]]) == 2
    assert "--retries: 2, but --retries needs -n" in capsys.readouterr().err
    assert main([words[0], "--retries", "-1", words[1]]) == 2
    assert "expected int from 0 to" in capsys.readouterr().err


#: Runs the command with a launcher of the test's own.
CALL = """
import sys
from pathlib import Path
from mpidl.launch import command, signals
signals.hold()
command.find_mpiexec = lambda: Path("launcher").absolute()
from mpidl.cli import main
sys.exit(main(sys.argv[1:]))
"""


def mark(text):
    return f"printf '\\002mpidl:%s\\003\\n' '{text}' >&2; "


def failed_mark(again):
    return mark("failed " + json.dumps(["rank 3 (worker 1) failed", again, None, ""]))


RUN = mark("ready") + mark('run "runs/digits"')
#: What the job says at each start, how it ends, and what the command returns.
STARTS = {
    "killed": ([RUN + "exit 137", RUN + mark("saved 0") + "echo '{}'; exit 0"], 0),
    "failed": ([RUN + failed_mark(True) + "exit 1", RUN + mark("saved 0") + "exit 0"], 0),
    "lost": ([RUN + "exit 0", RUN + mark("saved 0") + "exit 0"], 0),
    "diverged": ([RUN + failed_mark(False) + "exit 1"], 1),
    "wrong": (["exit 2"], 2),
    "stopped": ([RUN + mark("saved 75") + "exit 75"], 75),
    "always": ([RUN + "exit 137"] * 3, 1),
    "at last without space": ([RUN + "exit 137", RUN + mark("saved 0") + mark("saved 1") + "exit 1"], 1),
}


@pytest.mark.parametrize("case", STARTS)
def test_what_starts_again(case, tmp_path, bare_environment):
    starts, code = STARTS[case]
    (tmp_path / "digits.toml").write_text(
        '[run]\nepochs = 1\n[data]\nsource = "digits"\n[[model.layer]]\ntype = "dense"\nunits = 10\n'
    )
    (tmp_path / "runs" / "digits" / "checkpoints" / "7").mkdir(parents=True)
    scripts = "".join(f"{number}) {start};;\n" for number, start in enumerate(starts))
    launcher = tmp_path / "launcher"
    launcher.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit\nn=$(ls calls* 2> /dev/null | wc -l); echo "$*" > calls$n\n'
        f"case $n in\n{scripts}esac\n"
    )
    launcher.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", CALL, "train", "digits.toml", "-n", "3", "--retries", "2", "--json"],
        cwd=tmp_path, env=bare_environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    calls = [path.read_text() for path in sorted(tmp_path.glob("calls*"))]
    assert (done.returncode, len(calls)) == (code, len(starts)), done.stderr
    assert ["--resume=runs/digits" in call for call in calls] == [number > 0 for number in range(len(starts))]
    assert done.stderr.count("resumes from step 7 of runs/digits") == len(starts) - 1
    if case == "failed":
        assert done.stderr.startswith("mpidl: rank 3 (worker 1) failed; attempt 2 of 3")
