"""Staging: the memory that MPI gets instead of arrays on a device."""

import ctypes

import numpy as np
import pytest

import fake_cupy
from mpidl.errors import UsageError
from mpidl.rma import staging
from mpidl.rma.staging import Staging, cuda_aware, is_direct


def as_mpi_sees(memory):
    """Return the bytes that MPI would read at this moment."""
    return bytes(memory)


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in for CuPy, also where CuPy is installed: its stream can be watched."""
    return fake_cupy.fake()


def test_the_hosts_arrays_are_given_as_they_are(cupy):
    values = np.arange(5.0)
    for direct in (False, True):
        ways = Staging(cupy, direct)
        assert ways.outgoing(values, 0) is ways.incoming(values, 0) is ways.on_host(values, 0) is values
        ways.flushed(0)


def test_staged_what_goes_out_is_there_when_mpi_is_given_it(cupy):
    ways = Staging(cupy, direct=False)
    values = cupy.asarray(np.arange(5, dtype="float32"))
    values *= 2
    given = ways.outgoing(values, 1)
    assert type(given) is np.ndarray
    assert given.tolist() == [0, 2, 4, 6, 8]


def test_staged_what_comes_in_is_there_once_its_rank_is_flushed(cupy):
    ways = Staging(cupy, direct=False)
    values = cupy.zeros(4)
    part, rest = values[:3], values[3:]
    given, other = ways.incoming(part, 1), ways.incoming(rest, 2)
    given[:], other[:] = (1, 2, 3), 4
    ways.flushed(1)
    assert values.get().tolist() == [1, 2, 3, 0]
    given[:] = 9
    ways.flushed(1)
    ways.flushed(2)
    assert values.get().tolist() == [1, 2, 3, 4]


def test_pinned_memory_is_lent_until_its_rank_is_flushed_and_then_again(cupy):
    ways = Staging(cupy, direct=False)
    values = cupy.asarray(np.arange(5.0))
    first, second = ways.outgoing(values, 1), ways.outgoing(values, 1)
    other = ways.incoming(values, 2)
    other[:] = np.arange(5)
    addresses = {each.ctypes.data for each in (first, second, other)}
    assert len(addresses) == 3
    ways.flushed(1)
    for _ in range(3):
        again = {ways.outgoing(values, 1).ctypes.data, ways.on_host(values, 1).ctypes.data}
        assert again == addresses - {other.ctypes.data}
        ways.flushed(1)
    several = [ways.outgoing(values, 1) for _ in range(5)]
    assert len({each.ctypes.data for each in several} - {other.ctypes.data}) == 5
    ways.flushed(2)
    ways.flushed(1)
    small = ways.outgoing(values[:4].astype("float32"), 1)
    assert small.dtype == np.float32
    assert small.tolist() == [0, 1, 2, 3]
    assert small.ctypes.data in {each.ctypes.data for each in (*several, other)}


def test_once_warm_nothing_is_pinned(stand_in):
    ways = Staging(stand_in, direct=False)
    whole = stand_in.zeros(100)
    for _ in range(5):
        ways.outgoing(whole[:64], 3)
        ways.incoming(whole, 3)
        ways.flushed(3)
        ways.outgoing(whole[64:], 3)
        ways.flushed(3)
    assert stand_in.cuda.pinned == [512, 800]


def test_direct_mpi_is_given_the_devices_memory(stand_in):
    ways = Staging(stand_in, direct=True)
    values = stand_in.asarray(np.arange(5.0))[1:]
    for given in (ways.outgoing(values, 0), ways.incoming(values, 0)):
        assert given.address == values.data.ptr
        assert given.nbytes == 32
    ctypes.memset(ways.incoming(values, 0).address, 0, 32)
    ways.flushed(0)
    assert values.get().tolist() == [0, 0, 0, 0]
    assert stand_in.cuda.pinned == []
    # An encoder reads host memory.
    assert type(ways.on_host(values, 0)) is np.ndarray


@pytest.mark.parametrize("direct", [False, True])
def test_the_stream_is_synchronised_before_mpi_is_given_anything_of_the_devices(stand_in, monkeypatch, direct):
    ways = Staging(stand_in, direct)
    values, times = stand_in.zeros(3), []
    synchronise = fake_cupy.Stream.synchronize
    monkeypatch.setattr(fake_cupy.Stream, "synchronize", lambda self: (times.append(1), synchronise(self)))
    ways.outgoing(values, 0)
    assert len(times) == 1
    # With staging, MPI writes into memory that the device no longer reads.
    ways.incoming(values, 0)
    assert len(times) == 1 + direct
    ways.flushed(0)
    # With staging, the device has read that memory before it is reused.
    assert len(times) == 2
    ways.flushed(0)
    assert len(times) == 2


def test_what_mpi_says_decides_unless_a_user_does(monkeypatch):
    assert cuda_aware() in (False, True)
    for aware in (False, True):
        monkeypatch.setattr(staging, "cuda_aware", lambda aware=aware: aware)
        assert is_direct("auto") is aware
        assert not is_direct("staged")
    assert is_direct("direct")
    monkeypatch.setattr(staging, "cuda_aware", lambda: False)
    with pytest.raises(UsageError) as error:
        is_direct("direct")
    assert str(error.value) == (
        "device.transfer: 'direct', but this MPI library isn't CUDA-aware; expected 'auto' or 'staged'"
    )


def test_a_library_that_says_nothing_is_not_aware(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda path: object())
    assert not cuda_aware()
    monkeypatch.setattr(ctypes, "CDLL", lambda path: type("Says", (), {"MPIX_Query_cuda_support": lambda self: 1})())
    assert cuda_aware()
