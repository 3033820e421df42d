"""The command ``mpidl submit``: what it takes, the names in its scripts, and its errors."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from mpidl.cli import main
from mpidl.launch.batch import COMMANDS
from mpidl.launch.script import NOTE

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def submitted(monkeypatch, tmp_path, capsys):
    """Runs ``mpidl submit`` with a shell script as scheduler, which may fail; returns code, stdout and stderr."""
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)

    def submit(*words, scheduler="sbatch", fails=False, target=JOBS / "digits.toml"):
        if scheduler:
            path = tmp_path / "bin" / scheduler
            path.write_text(
                f"#!/bin/sh\nif [ {fails:d} = 1 ]; then echo 'no such queue' >&2; exit 1; fi\necho took $*\n"
            )
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        code = main(
            ["submit", *([str(target)] if target else []), "--nodes=2", "--ranks-per-node=2", "--time=5:00", *words]
        )
        return code, *capsys.readouterr()

    return submit


def test_a_script_is_written_beside_the_runs_and_submitted(submitted, tmp_path):
    assert submitted("--scheduler=slurm") == (0, "took runs/digits.sbatch (runs/digits.sbatch)\n", "")
    assert "#SBATCH --ntasks-per-node=2" in (tmp_path / "runs" / "digits.sbatch").read_text()
    assert submitted("--scheduler=flux", scheduler="flux")[1] == "took batch runs/digits.flux (runs/digits.flux)\n"


def test_an_environment_takes_the_place_of_that_of_this_mpidl(submitted, tmp_path):
    (tmp_path / "env.tar.zst").touch()
    assert submitted("--scheduler=pbs", scheduler="qsub")[0] == 0
    plain = (tmp_path / "runs" / "digits.pbs").read_text().splitlines()
    assert submitted("--scheduler=pbs", "--env=env.tar.zst", scheduler="qsub")[0] == 0
    script = (tmp_path / "runs" / "digits.pbs").read_text()
    (own,) = [line for line in plain if line.startswith("export PATH=")]
    assert own not in script
    assert f" mpidl {tmp_path}/env.tar.zst " in script


def test_a_script_is_written_over_no_other_file(submitted, tmp_path):
    secret, script = tmp_path / "secret", tmp_path / "runs" / "digits.sbatch"
    secret.write_text("secret")
    script.parent.mkdir()
    script.symlink_to(secret)
    assert submitted("--scheduler=slurm")[0] == 0
    assert secret.read_text() == "secret"
    assert "#SBATCH --ntasks-per-node=2" in script.read_text()


@pytest.fixture
def runs(tmp_path):
    """The directories of a run from a configuration and of one that a script has trained elsewhere."""
    plain, scripted = tmp_path / "runs" / "digits", tmp_path / "runs" / "fold"
    for run in (plain, scripted):
        run.mkdir(parents=True)
        (run / "config.toml").write_text((JOBS / "digits.toml").read_text())
    (tmp_path / "train.py").write_text("import mpidl\n")
    note = {
        "script": str(tmp_path / "train.py"),
        "arguments": ["-x", "1"],
        "directory": str(tmp_path),
        "job": "runs/t-5",
    }
    (scripted / NOTE).write_text(json.dumps(note | {"name": "fold", "training": 1}))
    return plain, scripted


def test_what_can_be_submitted(submitted, runs, tmp_path):
    for target, words, expected in (
        ("train.py", ["--", "--rate", "3"], ["arguments=(train.py -- --rate 3)", "run=runs/train-$SLURM_JOB_ID"]),
        ("runs/digits", [], ['arguments=(--resume "$run")', "run=runs/digits"]),
        (None, ["--resume=runs/digits", "--set=run.epochs=3"], ['arguments=(--resume "$run" --set=run.epochs=3)']),
        (JOBS / "digits.toml", ["--resume", "runs/digits"], [f'arguments=({JOBS}/digits.toml --resume "$run")']),
        ("runs/fold", [], [f"arguments=({tmp_path}/train.py -- -x 1)", "run=runs/t-5"]),
        (None, ["--resume", "runs/fold", "--", "-x", "2"], [f"arguments=({tmp_path}/train.py -- -x 2)"]),
        ("train.py", ["--resume", "runs/fold"], ["arguments=(train.py)", "run=runs/t-5"]),
    ):  # fmt: skip
        code, out, err = submitted("--scheduler=slurm", "--print", *words, target=target)
        assert (code, err) == (0, "")
        assert set(expected) <= set(map(str.strip, out.splitlines()))


#: Names of files, parts of which shells, schedulers and terminals would interpret.
NAMES = (
    "j\ntouch PWN #",
    "-j",
    "--help",
    "-",
    "a b",
    'it\'s "x"',
    "$(touch PWN)",
    "`touch PWN`",
    "%j-%%",
    "{{id}}",
    "@name",
    "\x1b[31m",
    "\udcff",
    "ü",
)


@pytest.mark.parametrize("scheduler", COMMANDS)
def test_any_file_can_be_submitted(submitted, tmp_path, scheduler):
    """Its script is lines of text without control characters, and calls ``mpidl`` with its name."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    for command in ("srun", "timeout", "flux"):
        (tmp_path / "bin" / command).write_text('#!/bin/sh\nprintf "%s\\n" "$@" > called; exit 2\n')
        (tmp_path / "bin" / command).chmod(0o755)
    runs = json.dumps(str(tmp_path / "own"))
    for name in NAMES:
        config = tmp_path / f"{name}.toml"
        config.write_text((JOBS / "digits.toml").read_text())
        words = (f"--scheduler={scheduler}", "--print", "--set=run.name=x", f"--set=run.dir={runs}")
        code, text, err = submitted(*words, target=f"./{name}.toml", scheduler=None)
        assert (code, err) == (0, "")
        assert all(line.isprintable() for line in text.split("\n"))
        subprocess.run(
            ["bash"], input=text, text=True, env={"PATH": os.environ["PATH"], "PBS_O_WORKDIR": str(tmp_path)}
        )
        called = os.fsdecode((tmp_path / "called").read_bytes())
        assert f"\n{name}.toml\n" in called or f"\n./{name}.toml\n" in called
        assert not (tmp_path / "PWN").exists()
        config.unlink()


def test_a_name_is_that_of_job_log_and_script_as_far_as_a_scheduler_takes_it(submitted, tmp_path):
    (tmp_path / "runs" / "it's %j").mkdir(parents=True)
    (tmp_path / "runs" / "it's %j" / "config.toml").write_text((JOBS / "digits.toml").read_text())
    for name in ("-my $(job)", "it's %j"):
        (tmp_path / f"{name}.toml").write_text((JOBS / "digits.toml").read_text())
    for target, expected in (
        ("./-my $(job).toml", ["output=runs/_my___job_-%j.log", "run=runs/_my___job_-$SLURM_JOB_ID"]),
        ("./it's %j.toml", ["job-name=it_s__j", "output=runs/it_s__j-%j.log", "run=runs/it_s__j-$SLURM_JOB_ID"]),
        ("runs/it's %j", ["job-name=it_s__j", """run='runs/it'"'"'s %j'"""]),
    ):  # fmt: skip
        code, text, err = submitted("--scheduler=slurm", "--print", target=target)
        assert (code, err) == (0, "")
        assert set(expected) <= {line.removeprefix("#SBATCH --") for line in text.splitlines()}
    assert (
        submitted("--scheduler=slurm", target="./-my $(job).toml")[1]
        == "took runs/_my___job_.sbatch (runs/_my___job_.sbatch)\n"
    )


def test_the_name_of_a_job_in_a_run_from_others_is_no_command(submitted, runs):
    note = runs[1] / NOTE
    note.write_text(json.dumps(json.loads(note.read_text()) | {"job": "x\ntouch PWN; `touch PWN`"}))
    _, text, _ = submitted("--scheduler=slurm", "--print", target="runs/fold")
    assert r"run=$'x\x0atouch PWN; `touch PWN`'" in text.splitlines()


def test_a_run_is_continued_where_its_script_ran(submitted, runs, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert submitted("--scheduler=slurm", target="../runs/fold")[0] == 0
    assert (tmp_path / "runs" / "fold.sbatch").exists()


@pytest.mark.parametrize(
    ("target", "words", "line"),
    [
        (None, [], "submit: expected CONFIG or --resume RUN_DIR (see `mpidl submit --help`)"),
        ("train.py", ["--set=run.epochs=3"], "--set run.epochs=3: a script takes arguments instead, after --"),
        ("runs/fold", ["--set=run.epochs=3"], "--set run.epochs=3: a script takes arguments instead, after --"),
        ("train.py", ["--x", "3"], "unrecognized arguments: --x 3, those of a script follow -- (see `mpidl --help`)"),
        ("runs/digits", ["--", "3"], "3: only a script takes arguments after --"),
        ("absent.py", [], "absent.py: No such file or directory"),
        ("runs/absent", [], "runs/absent: No such file or directory"),
    ],
)
def test_what_cannot_be_submitted_either(submitted, runs, target, words, line):
    assert submitted("--scheduler=slurm", "--print", *words, target=target) == (2, "", f"mpidl: {line}\n")


@pytest.mark.parametrize(
    ("words", "options", "code", "line"),
    [
        (["--scheduler=slurm"], {"fails": True}, 1, "sbatch runs/digits.sbatch failed: no such queue"),
        (["--scheduler=flux"], {}, 2, "--scheduler: no command flux on PATH; --print shows the script"),
        (["--scheduler=lsf"], {}, 2, "--scheduler: 'lsf', expected slurm, pbs, flux"),
        (["--mpi=openmpi"], {}, 2, "--mpi: 'openmpi', expected pmix, pmi2, mpirun"),
        (["--memory-per-node=64 GB"], {}, 2, "--memory-per-node: '64 GB', expected a number and K, M, G or T"),
        (["--nodes=0"], {}, 2, "--nodes: expected int >= 1, found 0"),
        (["--set=topology.servers=4"], {}, 2, "4 ranks are too few"),
        (["--set=run.dir=a'b"], {}, 2, "run.dir: "),
        (["--queue=a\nb\x1b[31m"], {}, 2, r"--queue: 'a\nb\x1b[31m', expected letters, digits and ./_+-:,@="),
        (["--env=env.zip"], {}, 2, "--env: 'env.zip', expected an archive: .tar.gz, .tar.zst, .tar, .sqfs, .squashfs"),
        (["--env=env.tar"], {}, 2, "--env: 'env.tar': no such file, expected an archive of conda-pack or venv-pack"),
        (["--account=me --wrap=x"], {}, 2, "--account: 'me --wrap=x', expected letters, digits and ./_+-:,@="),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_one_line(submitted, words, options, code, line):
    found, out, err = submitted(*words, **options)
    assert (found, out) == (code, "")
    assert err.startswith(f"mpidl: {line}")
    assert err.count("\n") == 1
