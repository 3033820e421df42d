"""A shard's whole state: another shard that loads it goes on as the first would have, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_cases import CASES, WORKERS, Pushes, assert_same, finish, listed, make

from mpidl.parameters import Range
from mpidl.shards import policies
from mpidl.shards.vectors import Accrual, Vectors


def check(case, size, chunk, dtype, actions, cut, xp=None):
    """Cut a sequence of actions in two, and let a shard that has seen other pushes carry out the second part."""
    unbroken, broken = (make(case, size, chunk, dtype, xp) for _ in range(2))
    other, before = make(case, size, chunk, dtype, xp, seed=1), Pushes()
    for action in actions[::-2]:
        before.act(other, *action)
    finish(unbroken, Pushes(), actions)
    pushes = Pushes()
    for action in actions[:cut]:
        pushes.act(broken, *action)
    state = listed(broken)
    for name, values in state.items():
        assert values.dtype == np.int64 or (values.dtype, values.shape) == (dtype, (size,)), name
    other.load(state)
    assert_same(listed(other), state)
    for values in state.values():
        values.fill(99)
    finish(other, pushes, actions[cut:])
    assert_same(listed(other), listed(unbroken))


@st.composite
def interleavings(draw):
    size = draw(st.integers(1, 21))
    action = st.tuples(st.integers(0, WORKERS - 1), st.sampled_from([False] * 5 + [True]), st.integers(0, 3))
    actions = draw(st.lists(action, min_size=1, max_size=60))
    return {
        "size": size,
        "chunk": draw(st.integers(1, size + 2)),
        "dtype": draw(st.sampled_from(["float32", "float64"])),
        "actions": actions,
        "cut": draw(st.integers(0, len(actions))),
    }


@pytest.mark.parametrize("case", CASES)
@given(interleaving=interleavings())
def test_a_shard_that_loads_a_state_goes_on_as_the_first_would_have(case, interleaving):
    check(case, **interleaving)


def test_every_policy_is_among_the_cases():
    used = {type(policy()) for _, policy in CASES.values()}
    concrete = {getattr(policies, name) for name in policies.__all__ if isinstance(getattr(policies, name), type)}
    assert used == concrete - {policies.Policy, policies.PushHeader}


def fixed(seed=1, count=60):
    random = np.random.default_rng(seed)
    return [
        (int(random.integers(WORKERS)), bool(random.random() < 0.05), int(random.integers(3))) for _ in range(count)
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cut", [7, 31, 32])
def test_a_shard_on_a_device_goes_on_too(cupy, case, cut):
    check(case, 21, 4, "float32", fixed(), cut, cupy)


def test_a_shard_on_a_device_goes_on_where_one_on_the_host_was_and_shows_it(cupy):
    host, device = make("gather", 21, 4, "float32"), make("gather", 21, 4, "float32", cupy)
    memory = np.zeros(21, np.float32)
    device.bind({"parameters": memory})
    pushes = Pushes()
    for action in fixed():
        pushes.act(host, *action)
    device.load(host.state())
    assert_same(listed(device), listed(host))
    assert memory.tobytes() == host.parameters.tobytes()


def test_vectors_are_the_shards_own_and_loading_keeps_them():
    shard = make("delay_compensated_adaptively", 21, 4, "float64")
    memory = np.empty(21)
    shard.bind({"parameters": memory})
    assert shard.state()["parameters"] is memory
    finish(shard, Pushes(), fixed())
    state, fresh = listed(shard), make("delay_compensated_adaptively", 21, 4, "float64")
    other = np.empty(21)
    fresh.bind({"parameters": other})
    fresh.load(state)
    assert fresh.parameters is other
    assert other.tobytes() == memory.tobytes()
    assert fresh.chunk(1).tobytes() == memory[4:8].tobytes()


@given(
    chunks=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(4, 5)), max_size=40),
    cut=st.integers(0, 40),
)
def test_units_are_accrued_on_as_before(chunks, cut):
    pieces = [Range(0, 4), Range(4, 8), Range(8, 11)]

    def make_accrual():
        vectors = {name: np.zeros(11) for name in ("parameters", "gradient", "previous")}
        return vectors, Accrual(Vectors(vectors), pieces)

    def add(accrual, part):
        for unit, chunk, evaluation in part:
            values = np.random.default_rng((unit, chunk)).normal(size=pieces[chunk].size)
            added.append(accrual.add_chunk(evaluation, unit, chunk, values, unit + 0.5, 2.0))

    def begin(accrual):
        accrual.begin(5, ["gradient", "previous"], ["gradient", "previous", "gradient", "previous"])

    results = []
    for cuts in ([], [cut]):
        added: list[bool] = []
        vectors, accrual = make_accrual()
        begin(accrual)
        if cuts:
            add(accrual, chunks[:cut])
            state = {name: np.array(values) for name, values in accrual.state().items()}
            before, (vectors, accrual) = vectors, make_accrual()
            for name, vector in before.items():
                vectors[name][:] = vector
            accrual.load(state)
            for values in state.values():
                values.fill(99)
        add(accrual, chunks[cut:] if cuts else chunks)
        results.append((added, vectors, accrual))
    (added, vectors, accrual), (expected, unbroken, whole) = results
    assert added == expected
    assert_same(vectors, unbroken)
    assert_same(accrual.state(), whole.state())
    assert accrual.unfinished().tolist() == whole.unfinished().tolist()


@pytest.mark.parametrize("case", CASES)
def test_a_policy_is_stateless_if_its_state_is_empty(case):
    shard = make(case, 5, 2, np.float64)
    assert shard.policy.stateless == (not shard.policy.state())
