"""The command as a user runs it."""

import os
import subprocess
import sys

import pytest

LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "PRTE_", "MPI_", "SLURM_", "MPIDL_")


@pytest.fixture
def bare_environment():
    """The environment without what an MPI launcher around the tests put into it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}


@pytest.fixture
def mpidl(bare_environment, tmp_path):
    """Runs ``mpidl ARGUMENTS`` in an empty directory; ``variables`` are set in its environment."""

    def run(*arguments, **variables):
        return subprocess.run(
            [sys.executable, "-P", "-m", "mpidl", *map(str, arguments)],
            cwd=tmp_path,
            env=bare_environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
