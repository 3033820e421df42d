"""Submitting a batch script to the scheduler that is there."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.launch.batch import COMMANDS, Batch, seconds_of

__all__ = ["batch", "submit"]

#: What starts the ranks under Slurm.
STARTERS = ("pmix", "pmi2", "mpirun")


def batch(arguments: argparse.Namespace, name: str, directory: Path) -> Batch:
    """Return the batch script that the arguments of ``mpidl submit`` ask for.

    Parameters
    ----------
    arguments : argparse.Namespace
    name : str
        The run's name.
    directory : Path
        The directory of runs.

    Raises
    ------
    UsageError
        An argument is wrong, or there is no scheduler.
    """
    found = [scheduler for scheduler, (command, _) in COMMANDS.items() if shutil.which(command[0])]
    scheduler = arguments.scheduler or (found[0] if found else "slurm")
    if scheduler not in COMMANDS:
        raise UsageError(f"--scheduler: {quoted(scheduler)}, expected {', '.join(COMMANDS)}")
    if scheduler not in found and not arguments.only_print:
        raise UsageError(f"--scheduler: no command {COMMANDS[scheduler][0][0]} on PATH; --print shows the script")
    mpi = arguments.mpi or ("pmi2" if _has("mpich") or _has("impi-rt") else "pmix")
    if mpi not in STARTERS:
        raise UsageError(f"--mpi: {quoted(mpi)}, expected {', '.join(STARTERS)}")
    setup = arguments.setup or [f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"]
    return Batch(
        scheduler, arguments.config, name, directory, arguments.nodes, arguments.ranks_per_node,
        seconds_of(arguments.time), mpi, arguments.cores_per_rank, arguments.gpus_per_node, arguments.queue,
        arguments.account, arguments.overrides, setup, shlex.join(["mpidl", *arguments.words]),
    )  # fmt: skip


def _has(package: str) -> bool:
    """Tell whether a package that brings an MPI library is installed beside this one."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def submit(script: Batch) -> str:
    """Write a batch script, submit it, and return what the scheduler says.

    Raises
    ------
    MpidlError
        The script can't be written, or the scheduler doesn't take it.
    """
    text = script.script()
    try:
        script.directory.mkdir(parents=True, exist_ok=True)
        script.path.write_text(text)
    except OSError as error:
        raise MpidlError(f"{script.path}: {error.strerror}") from None
    command = [*COMMANDS[script.scheduler][0], str(script.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MpidlError(f"{shlex.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return f"{done.stdout.strip()} ({script.path})"
