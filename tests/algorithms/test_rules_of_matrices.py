"""Training by Muon: as a plain loop, with any number of servers, resumed with another one, by other algorithms."""

from functools import partial

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import ALGORITHMS
from mpidl.config import from_dict
from mpidl.data.dataset import ArraySplit
from mpidl.job.build import build
from mpidl.job.fill import held_shards
from mpidl.job.placed import place
from mpidl.nn.matrices import matrices, segments_by_tensors
from mpidl.rules import Adamw, Muon, Sgd

RULE = Muon(0.05, 0.9, weight_decay=0.1, rate_adamw=0.01)


def made():
    """Return a network in float64 with two hidden matrices, and samples."""
    random = np.random.default_rng(0)
    dense = [mpidl.nn.Dense(7, "tanh"), mpidl.nn.Dense(5, "tanh"), mpidl.nn.Dense(3)]
    network = mpidl.Network(dense, (4,), dtype="float64")
    split = ArraySplit(random.normal(size=(83, 4)), random.integers(0, 3, 83))
    return network, split


def by_tensors(network, rule=RULE):
    return segments_by_tensors(rule, [], network.layout, (), matrices([], network))


@pytest.fixture
def problem():
    return made()


def plain_loop(lab, epochs=2):
    """Train by Muon in a few lines."""
    problem = made()
    network = problem[0]
    hidden = {name: np.zeros(network.layout.shapes[name]) for name in matrices([], network)}
    assert len(hidden) == 2
    adamw, state, count = Adamw(0.01, weight_decay=0.1), [np.zeros(network.layout.size) for _ in range(2)], 0

    def update(x, gradient):
        nonlocal count
        count, g, before = count + 1, gradient(x), x.copy()
        new = before.copy()
        adamw.update(new, tuple(state), g, count)
        for name, momentum in hidden.items():
            own = slice(*network.layout[name].range)
            matrix, own_gradient = (each[own].reshape(momentum.shape) for each in (before, g))
            momentum[:] = 0.9 * momentum + own_gradient
            direction = own_gradient + 0.9 * momentum
            y = direction / (np.linalg.norm(direction) + 1e-7)
            y = y.T if y.shape[0] > y.shape[1] else y
            for _ in range(5):
                square = y @ y.T
                y = 3.4445 * y + (-4.7750 * square + 2.0315 * square @ square) @ y
            y = y if y.shape == matrix.shape else y.T
            new[own] = ((1 - 0.05 * 0.1) * matrix - 0.05 * 0.2 * max(matrix.shape) ** 0.5 * y).reshape(-1)
        return new

    return lab.serial(problem, update, epochs)


@pytest.mark.parametrize("chunk", [None, 11])
def test_one_worker_trains_as_a_plain_loop(lab, problem, chunk):
    segments = by_tensors(problem[0])
    found = lab.trained(
        problem, ALGORITHMS["downpour"](), rule=RULE, servers=1, chunk=chunk, of_shards={"segments": segments}
    )
    np.testing.assert_allclose(found, plain_loop(lab), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [
        ALGORITHMS["diloco"](window=3, inner="muon", rate=0.05),
        ALGORITHMS["averaging"](tau=2, inner="muon", rate=0.05),
        ALGORITHMS["easgd"](alpha=0.0, inner="muon", rate=0.05),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_local_steps_are_those_of_servers(lab, algorithm):
    rule = algorithm.local_rule
    assert rule == Muon(0.05)
    segments = {"segments": by_tensors(made()[0], rule)}
    engine = lab.engine(made(), algorithm, rule=Sgd(1.0), servers=1, of_steps=segments)
    engine.run()
    # A center that no force moves stays where it was.
    local = engine.replicas[0].parameters if algorithm.name == "easgd" else engine.parameters()
    served = lab.trained(made(), ALGORITHMS["downpour"](), rule=rule, servers=1, of_shards=segments)
    np.testing.assert_allclose(local, served, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["ssp", "softsync", "backup_sync", "dynsgd", "dcasgd", "sync"])
def test_every_gradient_is_stepped_with_several_workers(lab, problem, name):
    """Chunks of pushes interleave; at the end, no matrix has gradients left."""
    algorithm = ALGORITHMS[name]()
    engine = lab.engine(
        problem, algorithm, rule=RULE, servers=1, replicas=3, chunk=5, epochs=4, times=lab.random_times,
        of_shards={"segments": by_tensors(problem[0])},
    )  # fmt: skip
    engine.run()
    first = problem[0].parameters.copy()
    found = engine.parameters()
    assert np.isfinite(found).all()
    assert not np.array_equal(found, first)


# Jobs.

JOB = {
    "run": {"steps": 24, "seed": 3},
    "data": {"source": "digits", "batch": 32},
    "model": {
        "layer": [{"type": "dense", "units": units, "activation": "relu"} for units in (24, 16, 12)]
        + [{"type": "dense", "units": 10}]
    },
    "server": {"rule": "muon", "rate": 0.02},
}


def job(**topology):
    return from_dict({**JOB, "topology": topology})


@pytest.mark.parametrize("servers", [1, 2, 3, 5, 8])
def test_no_tensor_is_cut(servers):
    placed = place(build(job(servers=servers)), 1)
    held = [each.range for each in held_shards(placed, servers)]
    ends = {part.stop for part in placed.layout}
    assert [each.start for each in held] == [0, *(each.stop for each in held[:-1])]
    assert {each.stop for each in held} <= ends
    assert held[-1].stop == placed.layout.size
    assert len(held) == servers


def test_more_servers_than_tensors():
    placed = place(build(job(servers=9)), 1)
    with pytest.raises(
        mpidl.UsageError, match=r"^topology.servers: 9 for 8 tensors, which muon needs whole, expected at"
    ):
        held_shards(placed, 9)


def weights(run_dir):
    return mpidl.load(run_dir).parameters


def trained(tmp_path, name, **keywords):
    config = {**JOB, "run": {**JOB["run"], "dir": str(tmp_path), "name": name}}
    return mpidl.train(config=config, **keywords)["run_dir"]


def test_any_number_of_servers_and_another_at_resume_give_the_same_bits(tmp_path):
    expected = weights(trained(tmp_path, "one", servers=1))
    for servers in (2, 3, 8):
        found = weights(trained(tmp_path, f"of{servers}", servers=servers))
        assert np.array_equal(found, expected)
    trained(tmp_path, "parts", servers=3, steps=10)
    found = weights(trained(tmp_path, "parts", servers=2, resume=True))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"algorithm": {"name": "hogwild"}},
            "server.rule: muon, but hogwild's workers update one vector at the same time",
        ),
        (
            {"algorithm": {"name": "diloco"}},
            "server.rule: muon, but diloco pushes changes, not gradients, expected algorithm.inner = 'muon'",
        ),
        (
            {"topology": {"partitions": 2}},
            "topology.partitions: 2, but server.rule is muon, which needs whole matrices, expected 1",
        ),
    ],
)
def test_what_has_no_gradients_of_whole_matrices(sections, line):
    with pytest.raises(mpidl.UsageError, match=f"^{line}$"):
        from_dict({**JOB, **sections})


@pytest.mark.parametrize("name", ["averaging", "fedprox", "easgd", "diloco"])
def test_steps_of_replicas_leave_shards_as_they_are(tmp_path, name):
    """Shards end anywhere, and have no matrices; the replicas step them."""
    inner = {key: value for key, value in JOB.items() if key != "server"}
    placed = [
        place(build(from_dict({**inner, "algorithm": {"name": name, "inner": rule}})), 3) for rule in ("muon", "sgd")
    ]
    servers = 2 if name == "easgd" else 0
    one, other = (held_shards(each, servers) for each in placed)
    assert one == other
    assert not placed[0].scheduled_rule.matrices
    assert any(each.matrix for each in placed[0].segments)
    model = mpidl.Network([mpidl.nn.Dense(24, "relu"), mpidl.nn.Dense(16, "relu"), mpidl.nn.Dense(10)], (8, 8))
    algorithm = {"name": name, "inner": "muon", "rate": 0.02}
    summary = mpidl.train(model, mpidl.Digits(), algorithm=algorithm, epochs=5, batch=32, seed=3, dir=tmp_path)
    assert summary["test_accuracy"] > 0.8


def test_tables_use_the_other_rule():
    assert partial(job().tables.rule_beside, RULE)() == RULE.other


def test_lines_and_plans_say_which_rule_updates_a_tensor():
    from mpidl.runs.plan import as_text, plan

    placed = place(build(job()), 1)
    hidden = ", ".join(f"{number}-dense/weight" for number in range(3))
    assert placed.notes[-2] == f"muon updates {hidden}"
    assert placed.notes[-1].startswith("adamw updates 0-dense/bias, ")
    described = plan(job())
    assert {each["name"] for each in described["tensors"] if each["rule"] == "muon"} == set(hidden.split(", "))
    assert "\n3-dense/weight  12 x 10  adamw\n" in as_text(described)
