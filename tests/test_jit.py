"""Compiled functions and Numba's cache: of an installation that can be written, or only read."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mpidl
from mpidl.cli import main
from mpidl.doctor import compiling
from mpidl.jit import COMPILATION

JOB = Path(__file__).parents[1] / "jobs" / "digits.toml"
WARM = "from mpidl.rules import Adagrad, Sgd; from mpidl.jit import COMPILATION as found; "
TOLD = "; print(found.loaded, found.saved, found.lost, found.seconds > 0, *found.places); print(found)"


@pytest.fixture
def installation(tmp_path):
    """A copy of the package that has compiled nothing."""
    package = tmp_path / "site" / "mpidl"
    shutil.copytree(Path(mpidl.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    yield package
    _permit(package, 0o755)


def _permit(package, mode):
    for directory in (package, *package.rglob("*")):
        if directory.is_dir():
            directory.chmod(mode)


@pytest.fixture
def python(installation, bare_environment, tmp_path):
    """Runs Python with the installation, by a user without special rights; returns the lines of stdout and stderr."""
    powers = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    if powers and shutil.which("setpriv") is None:
        pytest.skip("as root, this needs setpriv")

    def run(*words, caches=tmp_path / "nowhere" / "nowhere"):
        own = {"PYTHONPATH": str(installation.parent), "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(caches)}
        done = subprocess.run(
            [*powers, sys.executable, "-P", *map(str, words)], cwd=tmp_path, env=bare_environment | own, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=580, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()

    (tmp_path / "nowhere").mkdir(mode=0o555)
    return run


def test_a_read_only_installation_has_what_its_owner_has_compiled(python, installation, tmp_path):
    cache = str(installation / "rules" / "__pycache__")
    assert python("-c", f"{WARM}Adagrad().warm('float32'){TOLD}")[0] == f"0 1 0 False {cache}"
    _permit(installation, 0o555)
    both = f"{WARM}Adagrad().warm('float32'); Sgd().warm('float32'){TOLD}"
    counts, line = python("-c", both)
    assert counts == f"1 0 1 True {cache}"
    assert line.startswith("each start compiles 1 function anew, ")
    assert "`mpidl doctor --compile`" in line
    for expected in ("1 1 0 False", "2 0 0 False"):
        counts, _ = python("-c", both, caches=tmp_path / "caches")
        assert counts.startswith(f"{expected} ")
        assert str(tmp_path / "caches" / "numba") in counts
        assert cache in counts


@pytest.mark.long
def test_jobs_of_an_installation_that_has_been_filled_compile_nothing(python, installation):
    """What they compile would be lost, and the first rank say so."""
    (line,) = python("-m", "mpidl", "doctor", "--compile")
    assert re.fullmatch(rf"compiled (\d+) functions in \d+ s; \1 for float32 and float64 are in {installation}", line)
    _permit(installation, 0o555)
    for words in (
        ["train", JOB, "--set=run.steps=20", "-n", "3"],
        [
            "train",
            JOB,
            "--set=server.rule=default",
            "--set=algorithm.name=sandblaster",
            "--set=run.epochs=2",
            "-n",
            "3",
        ],
        ["train", JOB, "--set=model.dtype=float64", "--set=server.rule=adam", "--set=run.steps=20"],
        ["simulate", JOB, "--replicas=3", "--set=virtual.compute=0.1", "--set=run.steps=20"],
    ):
        assert not [line for line in python("-m", "mpidl", *words) if "anew" in line], words
    assert "ok" in next(line for line in python("-m", "mpidl", "doctor") if line.startswith("compiled rules"))


def small(directory):
    yield {"model": {"layer": [{"type": "dense", "units": 10}]}}


def test_the_owner_is_told_what_was_compiled_and_where(monkeypatch, capsys):
    monkeypatch.setattr(compiling, "jobs", small)
    monkeypatch.setattr(compiling, "warm", lambda dtype: None)
    assert main(["doctor", "--compile"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"compiled \d+ functions in \d+ s; \d+ for float32 and float64 are in /.*\n", out)
    assert not err
    monkeypatch.setattr(COMPILATION, "lost", 1)
    assert main(["doctor", "--compile"]) == 1
    assert capsys.readouterr().err.startswith("mpidl: Numba's cache can't be written: expected NUMBA_CACHE_DIR, ")


def test_a_run_says_once_what_each_start_compiles_anew(monkeypatch, capsys, tmp_path):
    for lost, seconds, expected in ((0, 0.0, []), (2, 3.21, ["mpidl: each start compiles 2 functions anew, 3.2 s of"])):
        monkeypatch.setattr(COMPILATION, "lost", lost)
        monkeypatch.setattr(COMPILATION, "seconds", seconds)
        assert main(["train", str(JOB), "--set=run.steps=2", f'--set=run.dir="{tmp_path}"']) == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if "anew" in line]
        assert [line[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected
