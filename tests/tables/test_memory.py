"""Memory that grows, and what a process does that may have no more."""

import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mpidl.errors import MpidlError
from mpidl.rules import Sgd
from mpidl.tables import memory
from mpidl.tables.lookups import TableSpec
from mpidl.tables.memory import Growing
from mpidl.tables.table import Table


@contextmanager
def address_space(more):
    """Let the process have that many more bytes of address space."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    present = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (present + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_what_was_written_stays():
    memory = Growing((3,), np.float32)
    size = 0
    for _ in range(7):
        size = len(memory.array) + 1
        memory.array[:] = np.arange(size - 1)[:, None]
        memory.grow(size)
        assert len(memory.array) >= size
        np.testing.assert_array_equal(memory.array[: size - 1, 2], np.arange(size - 1))
        assert not memory.array[size - 1 :].any()


def test_nearly_all_of_a_limited_address_space_is_used():
    rows, ids = Table(TableSpec("users", 256, normal=False), Sgd(1.0)), np.arange(4096)
    gradients = np.zeros((ids.size, 256), np.float32)
    rows.update(ids, gradients, 1)

    def fill():
        for step in range(2, 40):
            rows.update(ids + step * ids.size, gradients, step)

    with address_space(40 << 20), pytest.raises(MpidlError) as error:
        fill()
    assert str(error.value) == (
        f"table users: full with {len(rows)} rows on this server; set max_rows or max_age, by which rows that aren't "
        "used are evicted, or more servers"
    )
    assert len(rows) * 1024 > 40 << 20
    # What there is works on.
    found = np.empty_like(gradients)
    rows.read(ids, found)
    rows.update(ids, np.ones_like(gradients), 99)
    after = np.empty_like(gradients)
    rows.read(ids, after)
    np.testing.assert_array_equal(after, found - 1)
    assert len(rows.arrays()["ids"]) == len(rows)


def test_a_table_is_full_before_the_machine_has_no_more_memory(monkeypatch, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 300000 kB\n")
    monkeypatch.setattr(memory, "OF_MACHINE", tmp_path / "meminfo")
    rows, ids = Table(TableSpec("users", 256, normal=False), Sgd(1.0)), np.arange(36_000)
    gradients = np.zeros((ids.size, 256), np.float32)
    rows.update(ids, gradients, 1)
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 270000 kB\n")
    with pytest.raises(MpidlError, match="table users: full with 36000 rows on this server; set max_rows or max_age"):
        rows.update(ids + ids.size, gradients, 2)
    assert len(rows) == ids.size
