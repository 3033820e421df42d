"""Tests of ranks, some of those that ``make hosts`` runs as a whole: windows and messages cross a network here."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ranks_on_hosts import LEVELS, words

pytestmark = pytest.mark.long
TESTS = Path(__file__).parents[1]
#: What every transport must hold: one worker is serial SGD, sums of integers are exact, and late messages lose nothing.
FILES = ("rma/test_random_delays.py", "ranks/test_training.py", "ranks/test_family_on_ranks.py")
CHOSEN = "bit_for_bit or (no_update_is_lost and (algorithm0 or algorithm3)) or (every_push_counts_once and 1-0)"


@pytest.mark.parametrize("transport", ["windows", "mixed"])
def test_between_hosts_nothing_is_lost_and_one_worker_is_serial_sgd(two_hosts, of_hosts, transport):
    """On three ranks the server and the worker are on different hosts."""
    tests = [str(TESTS / file) for file in FILES]
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "--with-mpi",
        "-m",
        "mpi",
        "-k",
        CHOSEN,
        f"--transport={transport}",
        *tests,
    ]
    command = words(two_hosts, 3, pytest, {"MPI4PY_RC_THREAD_LEVEL": LEVELS[transport]})
    job = two_hosts.begin(command, env=of_hosts(two_hosts), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    told, _ = job.communicate(timeout=300)
    assert job.returncode == 0, told
    assert len(re.findall(r"\d+ passed", told)) == 3
