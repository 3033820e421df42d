"""What a job writes: the launcher's messages, the rank that a signal has killed, and what ranks tell their launcher."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.launch import marks
from mpidl.launch.job_output import Deaths, quieten
from mpidl.launch.marks import nodes_as_text, nodes_from_text

RULE = b"-" * 74 + b"\n"
EXIT = b"prterun detected that one or more processes exited with non-zero status,\nthus causing the job\n\n"
STOPPED = RULE + EXIT + b"   Process name: [prterun-vm-5937@1,2]\n   Exit code:    75\n" + RULE
ABORTED = (
    RULE
    + b"MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[44683,1],1]\n  Errorcode: 1\n\n"
    + b"NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
    + RULE
    + RULE
    + b'prterun has exited due to process rank 1 with PID 0 on node vm calling\n"abort". This may have\n'
    + RULE
)
HYDRA = b"Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1\n"
EPOLL = (
    b"[warn] Epoll MOD(4) on fd 26 failed. Old events were 6; read change was 2 (del); write change was 0 (none); "
    b"close change was 0 (none): Bad file descriptor\n"
)
UNREACHED = b"[vm.x-1:20908] PMIX ERROR: PMIX_ERR_UNREACH in file /a/openpmix/src/server/pmix_server.c at line 3146\n"
TOO_EARLY = (
    RULE
    + b"prterun noticed that process rank 1 with PID 5 on node vm exited on\nsignal 10 (User defined signal 1).\n"
    + RULE
)

KILLED = RULE + b"prterun noticed that process rank 1 with PID 5929 on node vm exited on\nsignal 9 (Killed).\n" + RULE
FOREIGN = RULE + EXIT + b"   Exit code:    137\n" + RULE
SEGFAULT = RULE + EXIT + b"   Exit code:    11\n" + RULE
OTHER_ABORT = HYDRA.replace(b"Abort(1)", b"Abort(807027984)")
BAR = b"\r 12%|##   | loss 0.3\r 13%|##   | loss 0.2"


def cut(text, places):
    """Cut a text at some places."""
    edges = [0, *sorted(places), len(text)]
    return [text[start:stop] for start, stop in pairwise(edges) if start < stop]


@given(st.data())
def test_what_goes_and_what_stays_however_it_arrives(draw):
    redundant = [STOPPED, ABORTED, HYDRA, EPOLL, TOO_EARLY]
    words = [KILLED, FOREIGN, SEGFAULT, OTHER_ABORT, b"a line\n", b"---\n", b"\n", b"Abort!\n", RULE[1:]]
    parts = draw.draw(st.lists(st.sampled_from(redundant + words)))
    text = b"".join(parts)
    chunks = cut(text, draw.draw(st.sets(st.integers(1, max(1, len(text) - 1)))))
    assert b"".join(quieten(chunks)) == b"".join(part for part in parts if part in words)


def test_an_answer_to_a_rank_that_has_ended_goes_and_nothing_waits_for_its_end():
    other = UNREACHED.replace(b"UNREACH", b"LOST_CONNECTION")
    assert b"".join(quieten([b"a line\n" + UNREACHED, UNREACHED + other, b"more\n"])) == b"a line\n" + other + b"more\n"
    assert list(quieten([b"[===  ] 60 %", b"\r[==== ] 80 %"])) == [b"[===  ] 60 %", b"\r[==== ] 80 %"]


def test_a_bar_is_shown_at_once():
    shown = []
    for text in quieten(iter(lambda: BAR if len(shown) < 3 else None, None)):
        shown.append(text)
    assert shown == [BAR] * 3


@pytest.mark.parametrize("text", [b"mpidl: rank 1 (server 0) failed\n", KILLED])
def test_what_comes_beside_a_bar_begins_a_line(text):
    assert b"".join(quieten([BAR, text])) == BAR + b"\n" + text
    assert b"".join(quieten([BAR + b"\n", text])) == BAR + b"\n" + text


def test_a_redundant_message_beside_a_bar_goes():
    assert b"".join(quieten([BAR, ABORTED])) == BAR + b"\n"


def test_a_message_without_an_end_is_shown_in_the_end():
    assert b"".join(quieten([RULE + b"something\n"])) == RULE + b"something\n"
    long = RULE + b"x" * 5000
    chunks = quieten(iter([long, b"more"]))
    assert next(chunks) == RULE


def test_zero_bytes_are_left_out():
    assert b"".join(quieten([b"mpidl: rank 1 failed\n", b"\0", b"more\0\n"])) == b"mpidl: rank 1 failed\nmore\n"


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


TEXTS = (b"a line\n", b"\r 12%|##  |", b"\x02", b"\x02mpidl", b"mpidl failed: ", b"\x03", b"\x02mpidl:\n")


@given(st.data())
def test_marks_are_heard_and_the_rest_is_left(draw):
    words = ("ready", "saved 0", "saved 75")
    parts = draw.draw(st.lists(st.sampled_from([*words, *TEXTS])))
    text = b"".join(b"\x02mpidl:%s\x03\n" % each.encode() if isinstance(each, str) else each for each in parts)
    places = sorted({0, len(text), *draw.draw(st.sets(st.integers(0, len(text))))})
    chunks = [text[start:stop] for start, stop in pairwise(places)]
    heard = []
    left = b"".join(marks.listen(chunks, heard.append))
    assert heard == [each for each in parts if isinstance(each, str)]
    assert left == b"".join(each for each in parts if isinstance(each, bytes))


def test_only_ranks_of_a_launcher_that_listens_tell(bare_environment):
    call = [sys.executable, "-c", "from mpidl.launch import marks; marks.tell_done(75, 1)"]
    for variables, expected in (({}, b""), ({marks.VARIABLE: "1"}, b"\x02mpidl:saved 75\x03\n")):
        done = subprocess.run(call, env=bare_environment | variables, capture_output=True, check=True)
        assert done.stderr == expected
