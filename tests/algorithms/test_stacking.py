"""Stacking networks on the virtual engine: closed-form weights of any number of workers, servers and portions."""

from itertools import pairwise

import numpy as np
import pytest

from mpidl.algorithms import Stacking
from mpidl.data.dataset import ArraySplit
from mpidl.engines.virtual.times import Death, Exponential, Times
from mpidl.nn.network import from_config

SAMPLES, INPUTS, OUTPUTS = 101, 5, 2
TIMES = Times(compute=Exponential(1.0), latency=Exponential(0.01))


def problem(algorithm):
    """Return the algorithm's network, and samples of a function that no module fits exactly."""
    random = np.random.default_rng(3)
    inputs = random.normal(size=(SAMPLES, INPUTS))
    targets = np.sin(2 * inputs @ random.normal(size=(INPUTS, OUTPUTS))) + 0.1 * random.normal(size=(SAMPLES, OUTPUTS))
    keys = algorithm.model(OUTPUTS)
    network = from_config(keys["layer"], keys["loss"], (INPUTS,), 4, "float64")
    return network, ArraySplit(inputs.astype(np.float32), targets.astype(np.float32))


def run(lab, algorithm, most=None, of=None, **options):
    """Train; return the engine, the iterations, and the parameters at each."""
    seen, found = [], []

    def note(iteration):
        seen.append(iteration)
        found.append(engine.parameters().copy())
        return len(seen) == most

    options = {"epochs": 60, "times": TIMES} | options
    engine = lab.engine(of or problem(algorithm), algorithm, on_iteration=note, **options)
    engine.run()
    return engine, seen, found


def fit(algorithm, parameters, number=None):
    """Return the ridge regression of the targets on a module's hidden units, its weights, and its objective."""
    number = algorithm.modules if number is None else number
    network, split = problem(algorithm)
    network.parameters[:] = parameters
    samples = split.gather(np.arange(SAMPLES))
    hidden, outputs = network.values(samples, 3 * number)[0][-2:]
    upper = network.layout.views(network.parameters)[f"outputs-{number}/weight"]
    above = np.concatenate([hidden, np.sqrt(algorithm.ridge) * np.eye(algorithm.hidden)])
    targets = samples.targets.astype(float)
    beside = np.concatenate([targets, np.zeros((algorithm.hidden, OUTPUTS))])
    objective = np.sum((targets - outputs) ** 2) + algorithm.ridge * np.sum(upper**2)
    return np.linalg.lstsq(above, beside, rcond=None)[0], upper, objective / targets.size


@pytest.mark.parametrize(
    ("servers", "replicas", "unit", "backups"), [(1, 1, 2, True), (2, 3, 1, True), (7, 5, 2, True), (3, 4, 20, False)]
)
def test_upper_weights_are_those_of_all_samples_once(lab, servers, replicas, unit, backups):
    """Of 30 hidden units, the normal equations don't fit into one vector of parameters."""
    algorithm = Stacking(modules=2, hidden=30, ridge=0.2, unit=unit, backups=backups)
    _, seen, found = run(lab, algorithm, 2, servers=servers, replicas=replicas)
    expected, upper, _ = fit(algorithm, found[-1], 1)
    np.testing.assert_allclose(upper, expected, rtol=0, atol=1e-10)
    # Each of the passes over the data counts each sample once, however often units are handed out.
    assert seen[-1].samples % SAMPLES == 0
    assert seen[-1].portions == 13 * (seen[-1].samples - seen[-2].samples) / SAMPLES
    if replicas > 3 and backups:
        assert sum(each.backups for each in seen) > 0


def test_the_objective_falls_from_module_to_module(lab):
    algorithm = Stacking(modules=3, hidden=6, ridge=0.1)
    engine, seen, found = run(lab, algorithm, servers=2, replicas=3, epochs=48)
    assert all(after.objective <= before.objective * (1 + 1e-12) for before, after in pairwise(seen))
    assert [each.number for each in seen] == list(range(1, len(seen) + 1))
    last = {each.state["module"]: each for each in seen}
    objectives = [last[module].objective for module in range(3)]
    assert objectives[0] > 1.02 * objectives[1] > 1.02**2 * objectives[2]
    # Each module has a third of the epochs; its last iteration may take a few more.
    ends = [last[module].samples / SAMPLES for module in range(3)]
    assert all(share <= end < share + 10 for share, end in zip((16, 32, 48), ends, strict=True)), ends
    # Whenever the run ends, the network computes what the module in training does.
    for each, parameters in zip(seen, found, strict=True):
        expected, upper, objective = fit(algorithm, parameters)
        np.testing.assert_allclose(upper, expected, rtol=0, atol=1e-10)
        assert objective == pytest.approx(each.objective, rel=1e-12)
    assert np.array_equal(engine.parameters(), found[-1])


def test_a_run_goes_on_where_it_was(lab):
    """Both halves, the second with the vectors of the first one's shards, go on as the run that wasn't interrupted."""
    algorithm = Stacking(modules=2, hidden=6, ridge=0.1)
    options = {"times": None, "servers": 1, "epochs": 48}
    _, whole, _ = run(lab, algorithm, **options)
    for stop in (3, next(i for i, each in enumerate(whole) if each.state["module"] == 1) + 2):
        first, _, _ = run(lab, algorithm, stop, **options)
        rest = []
        second = lab.engine(problem(algorithm), algorithm, on_iteration=rest.append, **options)
        second.restart(first.save(), 0.0)
        second.run()
        # It first evaluates the objective where it was, and has that much less to do.
        assert [each.objective for each in rest[:4]] == [each.objective for each in whole[stop - 1 : stop + 3]]
        assert rest[0].state == whole[stop - 1].state | {
            "samples": whole[stop - 1].samples + 2 * SAMPLES, "evaluations": rest[0].total_evaluations,
        }  # fmt: skip
        assert rest[-1].state["module"] == 1


def test_samples_count_what_their_batches_weigh(lab, weighed):
    algorithm = Stacking(modules=1, hidden=4, ridge=0.5)
    of, weigh = weighed(problem(algorithm))
    engine, seen, _ = run(lab, algorithm, 5, of=of, servers=2, replicas=2)
    root = np.empty(SAMPLES)
    for indices in lab.batches(of, epochs=1):
        root[indices] = np.sqrt(weigh(indices) / len(indices))
    network, split = problem(algorithm)
    network.parameters[:] = engine.parameters()
    samples = split.gather(np.arange(SAMPLES))
    hidden, outputs = network.values(samples, 3)[0][-2:]
    above = np.concatenate([hidden * root[:, None], np.sqrt(0.5) * np.eye(4)])
    beside = np.concatenate([samples.targets * root[:, None], np.zeros((4, OUTPUTS))])
    upper = network.layout.views(network.parameters)["outputs-1/weight"]
    np.testing.assert_allclose(upper, np.linalg.lstsq(above, beside, rcond=None)[0], rtol=0, atol=1e-10)
    residual = np.sum((root[:, None] * (samples.targets - outputs)) ** 2) + 0.5 * np.sum(upper**2)
    assert seen[-1].objective == pytest.approx(residual / OUTPUTS / (root @ root), rel=1e-9)


def test_replicas_may_die(lab):
    algorithm = Stacking(modules=1, hidden=4)
    times = Times(compute=Exponential(1.0), deaths=(Death(0, 20.0, None), Death(1, 30.0, 60.0)))
    _, _, found = run(lab, algorithm, 6, times=times, replicas=3)
    expected, upper, _ = fit(algorithm, found[-1])
    np.testing.assert_allclose(upper, expected, rtol=0, atol=1e-10)
