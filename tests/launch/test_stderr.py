"""The launcher's messages: those about the run's own exit codes go, everything else stays, whole and at once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.launch.job_output import quieten

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
