"""Agreement among ranks when an action fails on some of them: none waits for ever."""

import pytest

from mpidl.errors import MpidlError, UsageError
from mpidl.runs.agreement import by_first_rank, together

pytestmark = pytest.mark.mpi


def divide():
    return 1 // 0


def exhaust():
    raise MemoryError("Unable to allocate 7 TiB")


FAILURES = [
    (divide, MpidlError, "ZeroDivisionError: integer division or modulo by zero (MPIDL_DEBUG=1 shows where)"),
    (exhaust, UsageError, "out of memory: Unable to allocate 7 TiB"),
]


@pytest.mark.parametrize(("action", "kind", "line"), FAILURES)
def test_any_error_of_the_first_rank_is_all_ranks(comm, action, kind, line):
    with pytest.raises(kind) as error:
        by_first_rank(action)
    assert str(error.value) == line


@pytest.mark.parametrize(("action", "kind", "line"), FAILURES)
def test_any_error_of_one_rank_is_all_ranks(comm, action, kind, line):
    last = comm.size - 1
    with pytest.raises(kind) as error:
        together(action if comm.rank == last else lambda: 0)
    assert str(error.value) == line + (f" (rank {last})" if last else "")


def test_keeping_open_mpi_quiet_leaves_the_thread_level(comm):
    from mpi4py import MPI

    from mpidl.rma import ucx

    before = MPI.Query_thread()
    ucx.quieten()
    assert MPI.Query_thread() == before
