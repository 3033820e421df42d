"""Batch scripts: the resources they request, and when they queue themselves again, with schedulers as shell scripts."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mpidl.cli import main
from mpidl.errors import UsageError
from mpidl.launch.batch import RESTARTS, BatchScript, Work, seconds_of
from mpidl.launch.script import UserScript

JOBS = Path(__file__).parents[2] / "jobs"
MADE = "# Made by: mpidl "
SCRIPTS = sorted(path for path in JOBS.iterdir() if path.suffix in (".sbatch", ".pbs", ".flux"))
SCHEDULERS = ("slurm", "pbs", "flux")
#: The run of a script, whose job is that of the run it continues.
SCRIPT = Work.running(UserScript(Path("my code/name.py"), ["--rate", "0.1 2"], "unused"), None)
CONTINUED = Work.running(UserScript(Path("/code/train.py"), [], "runs/train-5"), Path("out/fold-2"))

#: Stands for each scheduler's commands and for mpidl; what is called, and in which job of a script, goes to a file.
COMMAND = """#!/bin/bash
next() { # the exit code of this start: the first of $CODE that has not been taken, or the last one
    local codes=($CODE) taken
    taken=$(grep -c "mpidl " "$CALLS")
    echo "${codes[taken <= ${#codes[@]} ? taken - 1 : -1]}"
}
printf '%s\\n' "in ${MPIDL_RUN:-no job}" "$(basename "$0") $*" >> "$CALLS"
[ "$1" = getattr ] && echo f7
[ "$1" = resource ] && echo "${UP:-3}"
[ "$1" = show ] && printf 'node%s\n' 1 2 3
if [ "${*: -2:1}" = echo ]; then
    [[ " $LOST " == *" ${*: -1} "* ]] || echo "${*: -1}"
    exit
fi
case $(basename "$0") in
    timeout) [[ $* == *mpidl* ]] && exit "$(next)"; shift; exec "$@";;
    srun) exit "$(next)";;
    flux) [ "$1" = run ] && exit "$(next)";;
esac
exit 0
"""


def made(scheduler, **changes):
    work = Work.training(Path("a b.toml"), "name", Path("runs"), ["run.epochs=3"])
    given = {"work": work, "nodes": 3, "ranks_per_node": 4, "time": 3600} | changes
    return BatchScript(scheduler, **given)


def lines(scheduler, **changes):
    return made(scheduler, **changes).script().splitlines()


def second_line(path):
    return path.read_text().splitlines()[1]


@pytest.mark.parametrize("path", [each for each in SCRIPTS if second_line(each).startswith(MADE)], ids=lambda p: p.name)
def test_each_script_of_jobs_is_what_its_second_line_makes(path, monkeypatch, capsys):
    monkeypatch.chdir(JOBS.parent)
    words = shlex.split(second_line(path).removeprefix(MADE))
    assert main(words) == 0
    assert capsys.readouterr().out == path.read_text()


def test_the_job_array_has_a_task_for_each_point():
    text = (JOBS / "scaling.sbatch").read_text()
    words, last = (re.search(pattern, text)[1] for pattern in (r"\npoints=\((.+)\)\n", r"--array=0-(\d+)\n"))
    command = [sys.executable, JOBS.parent / "benchmarks" / "scaling.py", *words.split(), "--count"]
    assert subprocess.check_output([*command, "--start", "srun"], text=True) == f"{int(last) + 1}\n"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("changes", [{}, {"work": SCRIPT}])
def test_a_script_is_the_shells(scheduler, changes):
    text = made(scheduler, gpus_per_node=2, queue="q", account="a", setup=["module load x"], **changes).script()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "@" not in text.replace("[@]", "").replace("USR1@120", "")


def test_what_slurm_is_asked_for():
    found = lines("slurm", cores_per_rank=2, gpus_per_node=1, memory="64G", queue="fast", account="me")
    for option in (
        "nodes=3", "ntasks-per-node=4", "cpus-per-task=2", "gpus-per-node=1", "mem=64G", "partition=fast", "account=me",
        "time=01:00:00", "signal=USR1@120", "requeue",
    ):  # fmt: skip
        assert f"#SBATCH --{option}" in found
    assert '    srun --mpi=pmix --cpus-per-task=2 "${nodes[@]}" mpidl train "${arguments[@]}"' in found
    found = lines("slurm", mpi="mpirun")
    assert 'mpidl train -n 12 --retries 3 "${arguments[@]}" &' in found
    assert "#SBATCH --signal=B:USR1@120" in found


def test_what_pbs_and_flux_are_asked_for():
    found = lines("pbs", cores_per_rank=2, gpus_per_node=1, memory="64G", queue="fast", account="me")
    for option in (
        "-l select=3:ncpus=8:mpiprocs=4:ngpus=1:mem=64gb",
        "-q fast",
        "-A me",
        "-l walltime=01:00:00",
        "-r y",
    ):
        assert f"#PBS {option}" in found
    found = lines("flux", gpus_per_node=1, queue="fast", account="me")
    for option in ("nodes=3", "queue=fast", "bank=me", "time-limit=3600s"):
        assert f"#flux: --{option}" in found


@pytest.fixture
def run(tmp_path):
    """Runs a script with stand-ins; returns its exit code and what it called."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("srun", "scontrol", "squeue", "timeout", "qsub", "flux"):
        (directory / name).write_text(COMMAND)
        (directory / name).chmod(0o755)

    def start(text, code, **variables):
        calls = tmp_path / "calls"
        calls.write_text("")
        environment = {
            "PATH": f"{directory}:{os.environ['PATH']}", "CODE": str(code), "CALLS": str(calls),
            "SLURM_JOB_ID": "7", "PBS_JOBID": "7.head", "PBS_O_WORKDIR": str(tmp_path),
        }  # fmt: skip
        done = subprocess.run(["bash"], input=text, text=True, cwd=tmp_path, env=environment | variables, check=False)
        # Flux gets the seconds that are left.
        return done.returncode, re.sub(r"=35[89]\ds", "=3590s", calls.read_text()).splitlines()

    return start


AGAIN = {
    "slurm": "scontrol requeue 7",
    "pbs": "qsub -v MPIDL_RUN=runs/name-7,MPIDL_RESTARTS=1 runs/name.pbs",
    "flux": "flux --parent batch --env=MPIDL_RUN=runs/name-f7 --env=MPIDL_RESTARTS=1 runs/name.flux",
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("code", [0, 1, 2, 14, 75, 124, 137, 143])
def test_a_script_queues_itself_again_unless_the_run_is_done_or_would_fail_again(run, tmp_path, scheduler, code):
    summary = tmp_path / "runs" / "name-7" / "summary.json"
    summary.parent.mkdir(parents=True)
    summary.write_text('{"interrupted":false}')
    found, calls = run(made(scheduler).script(), code)
    assert found == code
    assert (AGAIN[scheduler] in calls) == (code > 2)


@pytest.mark.parametrize("scheduler", ["pbs", "flux"])
def test_a_printed_script_of_any_name_is_what_is_queued_again(run, tmp_path, scheduler):
    """Also if another script, or a link to a file, is where `mpidl submit` would write it."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "own").write_text("mine")
    (tmp_path / f"runs/name.{scheduler}").symlink_to(tmp_path / "own")
    changed = made(scheduler).script() + "# changed\n"
    (tmp_path / "elsewhere.sh").write_text(changed)
    assert run("exec bash elsewhere.sh", 75)[0] == 75
    assert (tmp_path / f"runs/name.{scheduler}").read_text() == changed
    assert (tmp_path / "own").read_text() == "mine"


RUN_SCRIPT = {
    "slurm": "srun --mpi=pmix --cpus-per-task=1 --kill-on-bad-exit=1 mpidl run ",
    "pbs": "timeout --signal=USR1 --preserve-status 3480 mpidl run -n 12 --retries 3 ",
    "flux": (
        "flux run --nodes=3 --tasks-per-node=4 --cores-per-task=1 --time-limit=3590s --signal=USR1@120 mpidl run "
    ),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("code", [0, 1, 2, 75, 137])
def test_a_users_script_runs_in_the_same_job_each_time(run, tmp_path, scheduler, code):
    job = "runs/name-f7" if scheduler == "flux" else "runs/name-7"
    done = tmp_path / "runs" / "name-7.done"
    started = f"{RUN_SCRIPT[scheduler]}my code/name.py -- --rate 0.1 2"
    done.parent.mkdir()
    done.touch()
    for variables in ({}, {"SLURM_RESTART_COUNT": "1", "MPIDL_RUN": job, "MPIDL_RESTARTS": "1"}):
        found, calls = run(made(scheduler, work=SCRIPT).script(), code, **variables)
        assert found == code
        assert f"in {job}" == calls[calls.index(started) - 1]
        again = AGAIN[scheduler].replace("RESTARTS=1", f"RESTARTS={1 + len(variables) // 3}")
        assert (again in calls) == (code > 2)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_job_that_continues_another_has_its_runs_and_a_log_of_its_own(run, scheduler):
    batch = made(scheduler, work=CONTINUED)
    assert str(batch.path).startswith("out/fold-2.")
    _, calls = run(batch.script(), 75)
    assert calls[calls.index(f"{RUN_SCRIPT[scheduler]}/code/train.py") - 1] == "in runs/train-5"
    text = made(scheduler, work=Work.resuming(Path("out/digits-7"), None, ["run.epochs=9"])).script()
    _, calls = run(text, 75)
    assert any(call.endswith(" --resume out/digits-7 --set=run.epochs=9") for call in calls)
    assert any("MPIDL_RUN=out/digits-7" in call for call in calls) == (scheduler != "slurm")


@pytest.mark.parametrize(
    ("codes", "found", "lost", "starts"),
    [
        ("137 0", 0, "", ["", 3]),
        ("137 143 0", 0, "node2", ["", 2, 2]),
        ("137", 137, "", ["", 3, 3, 3]),
        ("137 75", 75, "", ["", 3]),
        ("137 1", 1, "", ["", 3]),
        ("137 2", 75, "node1 node3", ["", 1]),
        ("137", 137, "node1 node2 node3", [""]),
    ],
)
@pytest.mark.parametrize("scheduler", ["slurm", "flux"])
def test_a_run_starts_again_on_the_nodes_that_are_left(run, tmp_path, scheduler, codes, found, lost, starts):
    summary = tmp_path / "runs" / "name-7" / "summary.json"
    summary.parent.mkdir(parents=True)
    summary.write_text('{"interrupted":false}')
    up = 3 - len(lost.split())
    code, calls = run(made(scheduler).script(), codes, LOST=lost, UP=str(up))
    calls = [call for call in calls if "mpidl train" in call]
    if scheduler == "slurm":
        names = ",".join(f"node{each}" for each in (1, 2, 3) if f"node{each}" not in lost)
        places = {count: f"--overlap --nodes={count} --ntasks={4 * count} --nodelist=" for count in (1, 2, 3)}
        assert all(place == "" or places[place] in call for place, call in zip(starts, calls, strict=True))
        assert all(sorted(call.split("--nodelist=")[1].split()[0].split(",")) == names.split(",") for call in calls[1:])
    elif up:
        assert [f"--nodes={place or 3} " in call for place, call in zip(starts, calls, strict=True)] == [True] * len(
            calls
        )
    assert code == found or up == 0


@pytest.mark.parametrize("ended", [True, False])
def test_a_script_that_srun_did_not_run_to_its_end_is_queued_again(run, tmp_path, ended):
    text = made("slurm", work=SCRIPT).script()
    (tmp_path / "runs").mkdir()
    if ended:
        (tmp_path / "runs" / "name-7.done").touch()
    code, calls = run(text, 0)
    assert code == (0 if ended else 75)
    assert (calls[-1] == AGAIN["slurm"]) == (not ended)


@pytest.mark.parametrize("summary", [None, '{"interrupted":true}'])
def test_ranks_that_srun_did_not_start_are_queued_again_though_it_returns_0(run, tmp_path, summary):
    if summary is not None:
        (tmp_path / "runs" / "name-7").mkdir(parents=True)
        (tmp_path / "runs" / "name-7" / "summary.json").write_text(summary)
    code, calls = run(made("slurm").script(), 0)
    assert code == 75
    assert calls[-1] == AGAIN["slurm"]


def test_beside_mpirun_the_script_passes_a_signal_on(run, tmp_path):
    ready, text = tmp_path / "ready", made("slurm", mpi="mpirun").script()
    (tmp_path / "bin" / "mpidl").write_text(
        f"#!/bin/bash\ntrap 'sleep 0.3; exit 75' USR1\ntouch {ready}\nwhile :; do sleep 0.05; done\n"
    )
    (tmp_path / "bin" / "mpidl").chmod(0o755)

    def tell():
        while not ready.exists():
            time.sleep(0.01)
        (shell,) = [int(each.name) for each in Path("/proc").glob("[0-9]*") if _is_script(each, tmp_path)]
        os.kill(shell, signal.SIGUSR1)

    with ThreadPoolExecutor() as pool:
        told = pool.submit(tell)
        code, calls = run(text, 0)
    told.result()
    assert (code, calls) == (75, ["in no job", "scontrol requeue 7"])


def _is_script(process, directory):
    """Tell whether a process is the shell that reads a script from stdin in a directory."""
    try:
        return (process / "cwd").resolve() == directory and (process / "cmdline").read_bytes() == b"bash\0"
    except OSError:
        return False


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_script_gives_up_in_the_end(run, scheduler):
    for restarts, again in ((RESTARTS - 1, True), (RESTARTS, False)):
        variables = {"SLURM_RESTART_COUNT": str(restarts), "MPIDL_RESTARTS": str(restarts)}
        _, calls = run(made(scheduler).script(), 75, **variables)
        assert any(call.startswith(AGAIN[scheduler].partition("_RUN")[0]) for call in calls) == again


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_script_goes_on_under_the_same_name(run, scheduler, tmp_path):
    name = "name-f7" if scheduler == "flux" else "name-7"
    _, calls = run(made(scheduler).script(), 75)
    started = next(call for call in calls if "mpidl train" in call)
    assert started.endswith(f"a b.toml --set=run.epochs=3 --set run.dir=runs --set run.name={name}")
    directory = tmp_path / "runs" / name
    directory.mkdir(parents=True)
    (directory / "config.toml").touch()
    _, calls = run(made(scheduler).script(), 75, MPIDL_RUN=f"runs/{name}")
    started = next(call for call in calls if "mpidl train" in call)
    assert started.endswith(f"mpidl train{' -n 12 --retries 3' * (scheduler == 'pbs')} --resume runs/{name}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("1:00:00", 3600), ("4:00", 240), ("90", 5400), ("100:00:01", 360001), ("0:05:30", 330)]
)
def test_times(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "1h", "3:59", "-5", "1:2:3", "1:00:00:00", "٣:00"])
def test_wrong_times(text):
    with pytest.raises(UsageError, match=r"^--time: "):
        seconds_of(text)
