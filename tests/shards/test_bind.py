"""Moving a shard's parameters into other memory."""

import numpy as np
import pytest

from mpidl.parameters import Range
from mpidl.rules import Adagrad
from mpidl.shards.on_device import ShardOnDevice
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.shards.state import PARAMETERS
from mpidl.shards.vectors import Combine, Vectors

SIZE, CHUNK = 13, 4
RULE = ScheduledRule(Adagrad(0.1))


def initial():
    return np.random.default_rng(1).normal(size=SIZE)


def gradient(seed):
    return np.random.default_rng(seed).normal(size=SIZE)


def make():
    return Shard(Range(5, 5 + SIZE), initial(), RULE, ApplyAtOnce(), CHUNK)


def push(shard, seed, chunks=None):
    for number in reversed(range(shard.chunks)) if chunks is None else chunks:
        shard.receive_chunk(0, number, 0, gradient(seed)[slice(*shard.pieces[number])])


def unbroken(*seeds):
    shard = make()
    for seed in seeds:
        push(shard, seed)
    return shard.parameters.tobytes()


def test_pushes_change_the_new_memory_alone():
    shard, memory = make(), np.zeros(SIZE)
    push(shard, 1)
    before = shard.parameters
    then = before.tobytes()
    push(shard, 2, [3, 2])
    half = before.tobytes()
    shard.bind({PARAMETERS: memory})
    assert shard.parameters is memory
    assert shard.vectors[PARAMETERS] is memory
    assert np.shares_memory(shard.chunk(2), memory)
    push(shard, 2, [1, 0])
    assert memory.tobytes() == unbroken(1, 2) != then
    assert before.tobytes() == half


@pytest.mark.parametrize("names", [[PARAMETERS], [PARAMETERS, "sum"]])
def test_unbound_vectors_move_into_memory_of_the_shards_own(names):
    shard, windows = make(), {name: np.empty(SIZE) for name in names}
    shard.bind(windows)
    shard.unbind()
    for window in windows.values():
        assert not any(np.shares_memory(vector, window) for vector in shard.vectors.values())
        window.fill(np.nan)
    push(shard, 1)
    assert shard.parameters.tobytes() == unbroken(1)


def test_sparse_updates_follow():
    shard, memory = make(), np.empty(SIZE)
    before = shard.parameters
    shard.bind({PARAMETERS: memory})
    shard.update_sparsely(np.ones(SIZE), 1, 0, 0)
    assert np.array_equal(before, initial())
    assert not np.array_equal(memory, before)


def test_operations_follow():
    shard, memory = make(), np.empty(SIZE)
    vectors = Vectors(shard.vectors)
    shard.bind({PARAMETERS: memory})
    vectors.carry_out([Combine(PARAMETERS, ((2.0, PARAMETERS),))])
    assert np.array_equal(memory, 2 * initial())
    assert vectors[PARAMETERS] is memory


@pytest.mark.parametrize("memory", [np.empty(SIZE + 1), np.empty(SIZE, np.float32)])
def test_other_memory_is_refused(memory):
    with pytest.raises(ValueError, match=r"vector: float(32|64) of shape .*, expected float64 of shape \(13,\)$"):
        make().bind({PARAMETERS: memory})


def test_a_shard_on_a_device_publishes_in_the_new_memory(cupy):
    first, memory = initial(), np.empty(SIZE)
    shard = ShardOnDevice(Range(5, 5 + SIZE), first, RULE, ApplyAtOnce(), CHUNK, xp=cupy, state={"sum": np.zeros(SIZE)})
    push(shard, 1)
    then = first.tobytes()
    shard.bind({PARAMETERS: memory})
    assert memory.tobytes() == then == unbroken(1)
    push(shard, 2)
    assert memory.tobytes() == unbroken(1, 2)
    assert first.tobytes() == then
    shard.unbind()
    push(shard, 3)
    assert memory.tobytes() == unbroken(1, 2)
    assert shard.parameters.get().tobytes() == unbroken(1, 2, 3)
