"""Mailboxes: what they take of a server's memory, for any number of workers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Range
from mpidl.transport.capacity import FEWEST_ELEMENTS, MAILBOX_BYTES, MailboxGeometry
from mpidl.wire import BLOCK, parse

WIRES = st.sampled_from(["fp32", "bf16", "int8", "topk:0.01", "onebit"])


@given(
    size=st.integers(1, 10**9), workers=st.integers(1, 5000), wire=WIRES,
    dtype=st.sampled_from(["float32", "float64"]), within_nodes=st.booleans(),
)  # fmt: skip
def test_mailboxes_of_any_number_of_workers_have_room_for_a_chunk_beside_another(
    size, workers, wire, dtype, within_nodes
):
    geometry = MailboxGeometry.of(Range(0, size), workers, dtype, parse(wire), within_nodes=within_nodes)
    assert geometry.slots >= 2
    assert (geometry.chunks - 1) * geometry.chunk < size <= geometry.chunks * geometry.chunk
    assert geometry.chunk == size or geometry.chunk % BLOCK == 0
    if geometry.chunk > FEWEST_ELEMENTS:
        assert geometry.workers * geometry.ring <= MAILBOX_BYTES
    assert geometry.ring >= geometry.slots * geometry.stride(True)
    if not within_nodes:
        assert geometry.stride(False) == geometry.chunk * geometry.dtype.itemsize
        assert geometry.ring >= geometry.slots * geometry.stride(False)


@given(
    size=st.integers(1, 10**7), workers=st.integers(1, 5000), wire=WIRES,
    dtype=st.sampled_from(["float32", "float64"]), within_nodes=st.booleans(),
    chunk_bytes=st.sampled_from([2000, 1 << 19]), least=st.sampled_from([8, 1 << 17, 1_000_008]),
)  # fmt: skip
def test_each_slot_has_room_for_another_message(size, workers, wire, dtype, within_nodes, chunk_bytes, least):
    part, form = Range(0, size), parse(wire)
    geometry = MailboxGeometry.of(part, workers, dtype, form, chunk_bytes, within_nodes=within_nodes, least=least)
    assert all(geometry.stride(encoded) >= least and geometry.stride(encoded) % 8 == 0 for encoded in (False, True))
    assert (
        geometry.chunk == size
        or geometry.chunk % BLOCK == 0
        or geometry.chunk == chunk_bytes // geometry.dtype.itemsize
    )


@pytest.mark.parametrize(("workers", "chunk"), [(1, 262144), (125, 262144), (500, 66560), (1000, 32768), (10**6, 4096)])
def test_chunks_shrink_from_some_hundred_workers_on(workers, chunk):
    assert MailboxGeometry.of(Range(0, 20_000_000), workers, np.float32).chunk == chunk
