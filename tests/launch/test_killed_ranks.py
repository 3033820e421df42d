"""What is said of a rank that a signal has killed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.launch.job_output import Deaths
from mpidl.launch.marks import nodes_as_text, nodes_from_text

OPEN_MPI = (
    b"-----\nprterun noticed that process rank 2 with PID 29663 on node vm exited on\nsignal 9 (Killed).\n-----\n"
)
INTEL = b"=   RANK 3 PID 29031 RUNNING AT host\n=   KILLED BY SIGNAL: 11 (Segmentation fault)\n"
DAEMON = (
    b"-----\nPRTE has lost communication with a remote daemon.\n\n"
    b"  HNP daemon   : [prterun-head-8061@0,0] on node head\n"
    b"  Remote daemon: [prterun-head-8061@0,2] on node h2\n\nThis is usually due to\n-----\n"
)
ROLES = ("coordinator", "server 0", "worker 0", "worker 1")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OPEN_MPI, "rank 2 (worker 0) was killed by SIGKILL"),
        (INTEL, "rank 3 (worker 1) was killed by SIGSEGV"),
        (OPEN_MPI + INTEL, "rank 2 (worker 0) was killed by SIGKILL"),
        (INTEL + OPEN_MPI, "rank 3 (worker 1) was killed by SIGSEGV"),
        (OPEN_MPI.replace(b"signal 9", b"signal 99"), "rank 2 (worker 0) was killed by signal 99"),
        (DAEMON, "host h2 is lost, or the launcher's daemon there"),
        (OPEN_MPI + DAEMON, "rank 2 (worker 0) was killed by SIGKILL"),
        (b"Primary job terminated normally\n", None),
    ],
)
@pytest.mark.parametrize("size", [7, 1 << 16])
def test_the_first_rank_that_a_launcher_names(text, line, size):
    deaths = Deaths(ROLES.__getitem__)
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    assert list(deaths.watch(chunks)) == chunks
    assert getattr(deaths.cause(), "line", None) == line


def test_of_several_hosts_a_line_names_the_one():
    deaths = Deaths(ROLES.__getitem__, lambda: True)
    list(deaths.watch([OPEN_MPI]))
    assert deaths.cause() == ("rank 2 (worker 0) on vm was killed by SIGKILL", 2, "worker 0")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50))
def test_nodes_as_text(nodes):
    assert nodes_from_text(nodes_as_text(nodes)) == nodes


def test_nodes_of_a_large_job():
    assert len(nodes_as_text([rank // 128 * 128 for rank in range(4000)])) < 400
    assert nodes_as_text(list(range(4000))) is None
