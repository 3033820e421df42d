"""Checkpoints with only the rows of tables that were used since an earlier one."""

import shutil
from itertools import chain

import h5py
import numpy as np
import pytest
from saved_servers import SPECS, Servers

from mpidl.errors import MpidlError
from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard, Snapshot
from mpidl.sparse.messages import TableRows, plain
from mpidl.sparse.saved import SavedRows
from mpidl.sparse.server_tables import ServerTables
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import newest_good, prune, steps
from mpidl.storage.deltas import ShardFiles
from mpidl.storage.files import scratch
from mpidl.storage.integrity import DamagedError, verify
from mpidl.storage.table_files import saved_tables
from mpidl.tables.table import Table

SETTINGS = [{}, {"max_rows": 6}, {"max_age": 3}, {"admission": 3}]


def rows_in(checkpoint):
    """Return the number of rows in the checkpoint's own files."""
    found = 0
    for path in checkpoint.shards:
        with h5py.File(path) as file:
            found += sum(len(file[f"tables/{spec.name}/ids"]) for spec in SPECS)
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_rows_of_both_checkpoints_are_the_table(settings, tmp_path):
    """Three in a row: also rows that were evicted since the first, and some that came back."""
    servers, files = Servers(2, **settings), ShardFiles(full_every=3)
    everything, checkpoints = [], []
    for _ in range(4):
        servers.update(2)
        checkpoints.append(servers.save(tmp_path, files))
        everything.append([table.arrays() for table in chain(*servers.tables)])
    for checkpoint, expected in zip(checkpoints, everything, strict=True):
        verify(checkpoint.path)
        resumed = Servers(2, **settings).load(checkpoint)
        for own, arrays in zip(chain(*resumed.tables), expected, strict=True):
            assert own.arrays().keys() == arrays.keys()
            for name, values in own.arrays().items():
                np.testing.assert_array_equal(values, arrays[name], name)
        rows = SavedRows(checkpoint, SPECS)
        for table in range(2):
            found = rows.look_up(table, np.arange(50))
            np.testing.assert_array_equal(found.rows[found.places], resumed.read(table, np.arange(50)))
    total = [sum(len(arrays["ids"]) for arrays in each) for each in everything]
    own = [rows_in(checkpoint) for checkpoint in checkpoints]
    assert (own[0], own[3]) == (total[0], total[3])
    if not settings:
        assert own[1] < total[1]


def test_other_servers_go_on_from_rows_of_both(tmp_path):
    servers, files = Servers(3), ShardFiles(full_every=2)
    for _ in range(2):
        servers.update(4)
        checkpoint = servers.save(tmp_path, files)
    resumed = Servers(2).load(checkpoint)
    for table in range(2):
        np.testing.assert_array_equal(resumed.read(table, np.arange(50)), servers.read(table, np.arange(50)))
        assert len(saved_tables(checkpoint)[SPECS[table].name]) == sum(map(len, servers.tables[table]))


def test_a_checkpoint_of_the_same_step_takes_the_place_of_one_with_all_rows(tmp_path):
    servers, files = Servers(2), ShardFiles(full_every=9)
    servers.update(3)
    servers.save(tmp_path, files)
    again = servers.save(tmp_path, files)
    verify(again.path)
    assert rows_in(again) == sum(len(part) for part in chain(*servers.tables))
    servers.update(1)
    added = servers.save(tmp_path, files)
    assert 0 < rows_in(added) < rows_in(again)
    np.testing.assert_array_equal(Servers(2).load(added).read(0, np.arange(50)), servers.read(0, np.arange(50)))


@pytest.fixture
def three(tmp_path):
    """The directory of a run with a full checkpoint of step 2, and two of steps 4 and 6 that add to it."""
    servers, files = Servers(2), ShardFiles(full_every=9)
    for _ in range(3):
        servers.update(2)
        servers.save(tmp_path / "checkpoints", files)
    return tmp_path


def test_what_others_need_stays(three):
    checkpoints = three / "checkpoints"
    prune(checkpoints, keep=1, newest=6)
    assert steps(checkpoints) == [2, 6]
    verify(checkpoints / "6")
    servers = Servers(2)
    servers.update(8)
    servers.save(checkpoints)
    prune(checkpoints, keep=1, newest=8, best=6)
    assert steps(checkpoints) == [2, 6, 8]
    prune(checkpoints, keep=1, newest=8)
    assert steps(checkpoints) == [8]


def test_a_damaged_or_missing_file_of_the_full_one_is_noticed(three):
    full = three / "checkpoints" / "2" / "shard-1.h5"
    assert newest_good(three)[0].name == "6"
    content = full.read_bytes()
    full.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    line = r"6: shard-1\.h5 lacks rows of tables that are in step 2 \(.*2: shard-1\.h5 is damaged \(checksum\)\)$"
    with pytest.raises(DamagedError, match=line):
        verify(three / "checkpoints" / "6")
    servers = Servers(2)
    servers.update(1)
    servers.save(three / "checkpoints")
    assert newest_good(three)[0].name == "1"
    shutil.rmtree(full.parent)
    with pytest.raises(DamagedError, match=r"lacks rows of tables that are in step 2 \(.*2: shard-0\.h5 is missing\)"):
        verify(three / "checkpoints" / "6")
    with pytest.raises(MpidlError, match=r"2/shard-0\.h5: can't be read"):
        saved_tables(Checkpoint(three / "checkpoints" / "6"))


def test_another_checkpoint_of_the_same_step_is_not_the_full_one(three):
    servers = Servers(2, Sgd(0.1))
    servers.update(2)
    servers.save(three / "checkpoints")
    with pytest.raises(DamagedError, match="lacks rows of tables that are in step 2"):
        verify(three / "checkpoints" / "6")


def test_after_a_checkpoint_that_was_given_up_all_rows_are_saved(tmp_path):
    servers, files = Servers(2), ShardFiles(full_every=9)
    servers.update(2)
    servers.save(tmp_path, files).path.rename(scratch(tmp_path, 7))
    servers.update(2)
    assert rows_in(servers.save(tmp_path, files)) == sum(map(len, chain(*servers.tables)))
    servers.update(1)
    assert rows_in(servers.save(tmp_path, files)) < sum(map(len, chain(*servers.tables)))


def test_rows_that_a_marked_worker_updates_before_the_copy_is_complete_are_in_the_next_file(tmp_path):
    """The copy's clock falls behind the shard's, which has that worker's pushes, too."""
    rule, dtype = Sgd(1.0), np.dtype(np.float64)
    shard = Shard(Range(0, 1), np.zeros(1), ScheduledRule(rule), ApplyAtOnce(), 1)
    shard.side_state = ServerTables([Table(SPECS[0], rule, dtype=dtype)], rule, plain(dtype))
    snapshot, files, read = Snapshot(shard), ShardFiles(full_every=9), []

    def push(worker, word):
        part = TableRows(0, np.array([word]), np.ones((1, SPECS[0].dimension)))
        for each in (snapshot.receive_side_data, shard.side_state.receive):
            each(worker, [part])
        for each in (snapshot, shard):
            each.receive_chunk(worker, 0, 0, np.zeros(1), (0, 1))

    def save(step):
        files.save(tmp_path / str(step), 0, shard.range, snapshot.copy.saved(snapshot.copy.on_host()), snapshot.clock)
        with h5py.File(tmp_path / str(step) / "shard-0.h5") as file:
            read.append(file[f"tables/{SPECS[0].name}/ids"][:].tolist())

    push(0, 1)
    snapshot.begin([0, 1])
    snapshot.mark(0)
    push(0, 2)
    push(1, 3)
    snapshot.mark(1)
    save(2)
    push(1, 4)
    snapshot.begin([])
    save(4)
    assert read == [[1, 3], [2, 3, 4]]
