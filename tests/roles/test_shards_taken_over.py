"""A server ends at any line, and another one continues with its shard, from the memory that it has left."""

import json
import sys
import time
from collections import deque
from functools import cache
from itertools import chain, combinations
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Range
from mpidl.rma.backoff import Turn
from mpidl.rma.mailboxes import Inbox
from mpidl.rma.outbox import Outbox
from mpidl.rma.regions import regions
from mpidl.rma.server import ServerLink
from mpidl.rma.windows import OwnMemory
from mpidl.roles.served import ServedShard
from mpidl.rules import Adam, Muon
from mpidl.rules.segments import Matrix, Segment
from mpidl.rules.tensors import WholeTensors
from mpidl.shards.ledger import Ledger
from mpidl.shards.policies import ApplyAtOnce, drop_above, inverse
from mpidl.shards.scheduled_rule import AVERAGE, Average, ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.shards.staleness import Histogram
from mpidl.storage.deltas import ShardFiles
from mpidl.topology.roles import assign
from mpidl.transport.capacity import Capacity
from mpidl.transport.protocol import END, MARK, Order, Phase, ShardClock, State
from mpidl.transport.routes import Routes

SIZE, CHUNK, CHUNKS, WORKERS = 5, 2, 3, 2
#: The rule's own arguments: Adam with a statistic, and Muon for a matrix of several chunks.
ADAM = (Adam(0.1), {"statistics": [Range(1, 2)]})
MUON = (Muon(0.1), {"segments": [Segment(Range(0, 4), matrix=Matrix(2, 2)), Segment(Range(4, 5), rule=Muon().other)]})
VECTORS = (*Adam.states, AVERAGE)
#: What workers publish: (worker, chunks of its push, or what comes between two pushes). Their pushes interleave.
STEPS = [
    *[(0, 2), (1, 1), (0, 1), (1, 2), (0, MARK), (1, 3), (0, 3), (1, MARK)],
    *[(0, 1), (1, 2), (0, 2), (1, 1), (1, END), (0, 3), (0, END)],
]


class Died(BaseException):
    """Stands for a SIGKILL."""


#: Classes of a server's code.
KINDS = (ServedShard, Ledger, Shard, Inbox, Histogram, ApplyAtOnce, Average)


class Deaths:
    """Raises `Died` before certain lines of the code of classes, each counted from the one before, from 0."""

    def __init__(self, lines, kinds):
        self._lines, self.passed = deque(lines), 0
        own = [each for kind in kinds for each in vars(kind).values()]
        self._codes = {each.__code__ for each in own if hasattr(each, "__code__")}

    def _trace(self, frame, event, argument):
        if event == "line":
            self.passed += 1
            if self._lines and self.passed > self._lines[0]:
                self._lines.popleft()
                self.passed = 0
                raise Died
        return self._trace

    def __enter__(self):
        if self._lines:
            sys.settrace(lambda frame, event, argument: self._trace if frame.f_code in self._codes else None)

    def __exit__(self, *error):
        sys.settrace(None)


class Memory(OwnMemory):
    """The memory of a server and of the coordinator, which outlives the server's process."""


class Node:
    """A server's rank and its two workers.

    The server's process ends before some `lines` of the code of classes, and another one takes over. `lost` has chunks
    of which the values are lost: (worker, push, chunk).
    """

    rank = 1

    def __init__(self, directory, lines=(), lost=(), kinds=KINDS, rule=ADAM):
        self._directory, self._lost, self.deaths = directory, set(lost), Deaths(lines, kinds)
        self._rule, self._of_rule = rule
        self._events = directory / "events.jsonl"
        self._events.write_text("")
        roles, whole = assign([0] * (2 + WORKERS), servers=1), Range(0, SIZE)
        capacity = Capacity([whole], np.dtype(float), chunk_bytes=8 * CHUNK, evaluated=AVERAGE, kept=VECTORS)
        routes = Routes(roles, capacity)
        self._memory = Memory({**regions(routes, roles.coordinator), **regions(routes, self.rank)})
        self.saved, bells = [], SimpleNamespace(ring=lambda rank: None)
        self._shared = SimpleNamespace(
            window=self._memory, doorbells=bells, comm=None, roles=roles, partitions=1,
            capacity=capacity, routes=routes, workers=routes.workers, geometries=routes.geometries, crowded=False,
            processes=np.arange(2 + WORKERS), turn=Turn(), backoff=None,
            vectors=lambda shard: {name: self._memory.local(f"{name}/{shard}") for name in capacity.vectors},
        )  # fmt: skip
        self._outboxes = [Outbox(self._memory, self.rank, worker, routes.geometries[0]) for worker in range(WORKERS)]
        self._sent = [0] * WORKERS
        self.served = self._process()
        self.served.bind(self)

    def server(self, number):
        """Return the link of the server's process, to which this is a transport."""
        link = ServerLink(self._shared, number)
        link.reports.saved = lambda saved: self.saved.append(saved.order)
        return link

    def _process(self):
        """Return what serves the shard in a new process."""
        vectors = {name: np.zeros(SIZE) for name in VECTORS}
        rule = ScheduledRule(self._rule, lambda batch: 1 / (2 + batch), changed=Average(0.5), **self._of_rule)
        policy, parameters = drop_above(2, ApplyAtOnce(inverse)), np.arange(SIZE, dtype=float)
        shard = Shard(Range(0, SIZE), parameters, rule, policy, CHUNK, state=vectors)
        receive = shard.receive_chunk

        def receive_chunk(worker, chunk, fetched, values, batches=(0, 0)):
            lost = (worker, batches[0], chunk) in self._lost
            return receive(worker, chunk, fetched, None if lost else values, batches)

        if self._lost:
            shard.receive_chunk = receive_chunk
        return ServedShard(
            0, shard, 0, self._directory, lambda order: self._directory / str(order), workers=WORKERS, portion=int,
            deterministic=False, save=ShardFiles().save,
        )  # fmt: skip

    def run(self):
        """Play all steps to the end; return what the server has come to."""
        self.play(STEPS)
        return self._result()

    def play(self, steps, order=1):
        for worker, what in steps:
            outbox = self._outboxes[worker]
            if what > 0:
                self._push(worker, what)
            else:
                assert outbox.write_between(what, order)
                outbox.publish()
            self._serve()

    def _push(self, worker, chunks):
        """Publish the next chunks of a worker's push."""
        outbox, (push, sent) = self._outboxes[worker], divmod(self._sent[worker], CHUNKS)
        if not sent:
            outbox.begin(int(self._memory.local("clock/0")[ShardClock.CLOCK]) - 3 * (push % 2), (push, push + worker))
        self._sent[worker] += chunks
        values, first = np.random.default_rng((worker, push)).normal(size=SIZE), CHUNKS - sent - chunks
        while outbox.chunks_from(CHUNK * first):
            assert outbox.has_room()
            assert outbox.write(values, CHUNK * first)
            outbox.publish()

    def save(self, order, until):
        """Let the server save the checkpoint of an order until it has reported those of some orders."""
        deadline = time.monotonic() + 60
        while self.saved[: len(until)] != until:
            assert time.monotonic() < deadline
            self.served.save(Order(order, 0, Phase.TRAIN))
            time.sleep(1e-3)
        self.served.save(Order(order, 0, Phase.TRAIN))
        assert self.saved == until

    def take_over(self):
        self.served = self._process()
        self.served.adopt(self)

    def _serve(self):
        alive = True
        while True:
            try:
                with self.deaths:
                    if not alive:
                        self.take_over()
                    while self.served.round():
                        pass
                return
            except Died:
                alive = False

    def _result(self):
        found = {name: np.array(values) for name, values in self.served.shard.state().items()}
        posted, local = self._memory.local("servers")[0], self._memory.local
        assert posted["state"] == State.TRAINED
        found["posted"] = np.array([posted[name] for name in ("pushes", "dropped", "staleness_sum")])
        assert local("consumed/0").tolist() == local("published/0").tolist()
        return found | {"clock shown": local("clock/0").copy()}

    def lost(self):
        """Return the chunks recorded as lost: (worker, push, chunk)."""
        events = [json.loads(line) for line in self._events.read_text().splitlines()]
        return {(each["worker"], each["push"], each["chunk"]) for each in events if each["event"] == "lost"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return a function that runs without a death, with or without the values of some chunks."""
    return cache(lambda lost=(): Node(tmp_path_factory.mktemp("run"), lost=lost).run())


def check(node, undisturbed):
    """Check that all but lost chunks are applied once, and these once or not at all; return them."""
    found, lost = node.run(), node.lost()
    torn = np.repeat([chunk in {own for _, _, own in lost} for chunk in range(CHUNKS)], CHUNK)[:SIZE]
    subsets = chain.from_iterable(combinations(sorted(lost), count) for count in range(len(lost) + 1))
    possible = [undisturbed(each) for each in subsets]
    # The state of the rule or the average may be torn.
    kept = {name: ~torn if name.startswith("rule/") else ... for name in found}
    assert any(all((found[name][part] == each[name][part]).all() for name, part in kept.items()) for each in possible)
    return lost


@pytest.mark.parametrize(("kinds", "stride"), [((Ledger,), 3), pytest.param(KINDS, 1, marks=pytest.mark.long)])
def test_it_ends_at_any_line(tmp_path, undisturbed, kinds, stride):
    whole = Node(tmp_path, [10**9], kinds=kinds)
    whole.run()
    lines = range(0, whole.deaths.passed, stride)
    losses = [check(Node(tmp_path, [line], kinds=kinds), undisturbed) for line in lines]
    assert {len(each) for each in losses} == {0, 1}
    # Every chunk is torn at some line.
    assert len(set().union(*losses)) == whole.served.shard.pushes * CHUNKS


def progress(node):
    """Return what matrices have of the pushes, after each step."""
    found = []
    for step in STEPS:
        node.play([step])
        found.append(node.served.shard.state()["steps"].tolist())
    return found


def test_matrices_wait_for_the_same_chunks(tmp_path):
    """A server with Muon ends at any line: at most a part of a push is lost, and no matrix steps between two pushes."""
    kinds = (Ledger, Shard, WholeTensors, Muon)
    whole = Node(tmp_path, [10**9], kinds=kinds, rule=MUON)
    steps, losses = progress(whole), set()
    expected = whole.served.shard.state()
    assert any(map(any, steps))
    for line in range(0, whole.deaths.passed, 2):
        node = Node(tmp_path, [line], kinds=kinds, rule=MUON)
        assert progress(node) == steps, line
        found, torn = node.served.shard.state(), {chunk for _, _, chunk in node.lost()}
        losses.add(len(torn))
        for chunk in {*range(CHUNKS)} - torn:
            part = slice(CHUNK * chunk, CHUNK * (chunk + 1))
            assert np.array_equal(found["rule/first_moment"][part], expected["rule/first_moment"][part]), line
        assert torn or all(np.array_equal(found[name], expected[name]) for name in found), line
    assert losses == {0, 1}


@given(st.integers(0, 2000), st.lists(st.integers(0, 90) | st.integers(0, 900), min_size=1, max_size=4))
def test_others_end_too(tmp_path_factory, undisturbed, first, others):
    lost = check(Node(tmp_path_factory.mktemp("run"), [first, *others]), undisturbed)
    assert len(lost) <= 1 + len(others)


@pytest.mark.parametrize("after", range(3))
def test_a_checkpoint_in_progress_is_given_up_and_the_next_one_is_written(tmp_path, after):
    """The process ends before all marks, between them, or when the copy is complete."""
    node = Node(tmp_path)
    steps = [(0, 3), (0, MARK), (0, 3), (0, END), (1, MARK)]
    node.play(steps[: (1, 4, 5)[after]])
    node.take_over()
    node.play(steps[(1, 4, 5)[after] :])
    saved = [1] if after == 0 else []
    node.save(1, until=saved)
    node.play([(1, 3), (1, MARK)], order=2)
    node.save(2, until=[*saved, 2])
    assert (tmp_path / "1").exists() == (after == 0)
    with h5py.File(tmp_path / "2" / "shard-0.h5") as file:
        assert (file["parameters"][...] == node.served.shard.parameters).all()
