"""Rows of tables by way of a relay: each gradient counts once, and in a checkpoint if it came before its mark."""

from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from test_relays import SIZE, Pusher, connection, give_order, play, servers, wait_for_files, way

from mpidl import Sgd
from mpidl.sparse.merging import MergedRows
from mpidl.sparse.messages import plain
from mpidl.sparse.server_tables import ServerTables
from mpidl.storage.files import scratch
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table
from mpidl.transport.status import WorkerStatus

__all__ = ["connection", "servers", "way"]

pytestmark = pytest.mark.mpi(min_size=3)
SPEC, DTYPE = TableSpec("ids", 2, None, scale=0.0), np.dtype(np.float64)
IDS = np.array([-(2**63), 2**63 - 1, -1, *range(60)])
#: Bytes of a message, which has part of a push's ids, and ids of a push.
SIDE_DATA, CHOSEN = 512, 50


class RowPusher(Pusher):
    """Pushes rows, too: the gradient is -1 for each of some random ids, so that rows count these."""

    def __init__(self, transport, number, figures):
        from mpidl.sparse.remote import RemoteRows

        super().__init__(transport, number, figures)
        self.counts, self.bytes, self.status = np.zeros(len(IDS)), 0, WorkerStatus()
        self._seen, self._random = np.zeros(len(IDS)), np.random.default_rng(number)
        self._rows = RemoteRows(SimpleNamespace(tables=[SPEC], dtype=DTYPE), plain(DTYPE), SIDE_DATA, figures, 0)
        self._rows.bind(self.link, self.status)

    def push(self):
        self.push_rows()
        super().push()

    def push_rows(self):
        chosen = self._random.integers(len(IDS), size=CHOSEN)
        self._rows.look_up(0, IDS[chosen]).add(-np.ones((CHOSEN, 2)))
        self._rows.push()
        self.counts += np.bincount(chosen, minlength=len(IDS))
        self.bytes += np.unique(chosen).size * (8 + 2 * DTYPE.itemsize)

    def fetch(self):
        super().fetch()
        seen = self.present()
        assert (seen >= self.counts).all()
        assert (seen >= self._seen).all()
        self._seen = seen

    def present(self):
        found = self._rows.look_up(0, IDS)
        rows = found.rows[found.places]
        assert (rows[:, 0] == rows[:, 1]).all()
        return rows[:, 0]


def saved_counts(path, order, shards):
    found = np.zeros(len(IDS))
    for shard in range(shards):
        with h5py.File(scratch(path, order) / f"shard-{shard}.h5") as file:
            ids, rows = file["tables/ids/ids"][...], file["tables/ids/rows"][...]
        for id, row in zip(ids.tolist(), rows[:, 0], strict=True):
            found[id == IDS] += row
    return found


def test_rows_count_once(comm, shared_path, way, servers, monkeypatch):
    def check_saved(coordinator, pusher, order, expected):
        if coordinator is not None:
            wait_for_files(pusher, coordinator, order, servers)
            assert (saved_counts(shared_path, order, servers) == expected).all()

    def act(pusher, among, coordinator):
        for push in range(12):
            pusher.push()
            if push % 3 == 2:
                pusher.fetch()
        give_order(coordinator, 1)
        for turn in range(among.size):
            if turn == pusher.number:
                pusher.push()
                pusher.mark(1)
                marked = pusher.counts.copy()
            pusher.push()
            pusher.fetch()
            pusher.meet(among)
        check_saved(coordinator, pusher, 1, sum(among.allgather(marked)))
        # What a worker sends for rows behind its last push is in checkpoints after its end, too.
        if pusher.number:
            pusher.push_rows()
            pusher.until(pusher.link.pushes.end)
        pusher.meet(among)
        give_order(coordinator, 2)
        if not pusher.number:
            pusher.push()
            pusher.mark(2)
        total = sum(among.allgather(pusher.counts))
        check_saved(coordinator, pusher, 2, total)
        pusher.until(pusher.link.pushes.end)
        # Rows are looked up after the end of the pushes, too.
        pusher.until(lambda: (pusher.present() == total).all())
        assert not pusher.status.figures["bytes_pushed"]
        assert not pusher.status.figures["bytes_fetched"]
        pusher.meet(among)

    roles, found = play(
        comm, shared_path, way, servers, monkeypatch, act, late=True, pusher=RowPusher, side_data=SIDE_DATA,
        merging=MergedRows([SPEC], plain(DTYPE), SIDE_DATA),
        side_state=lambda: ServerTables([Table(SPEC, Sgd(1.0), capacity=1000, dtype=DTYPE)], Sgd(1.0), plain(DTYPE)),
    )  # fmt: skip
    everywhere = comm.allgather((found.pushes, found.bytes) if isinstance(found, RowPusher) else (0, 0))
    pushes, apart = (sum(each) for each in zip(*everywhere, strict=True))
    relayed = comm.bcast(None if comm.rank else found.status.figures[["pushes", "bytes_pushed"]].tolist())
    # A message has at least 12 ids, or is the last one of a push for its server.
    heads = 16 * (apart / (12 * 24) + servers * relayed[0])
    assert relayed[0] * SIZE * 8 < relayed[1] <= relayed[0] * SIZE * 8 + apart + heads
    if relayed[0] < 0.7 * pushes:
        assert relayed[1] < relayed[0] * SIZE * 8 + apart
    if comm.rank in roles.servers:
        assert all(each.shard.pushes == relayed[0] for each in found.served)
