"""Sandblaster on the virtual engine: exactness, exactly-once accrual, backups."""

from itertools import pairwise

import numpy as np
import pytest
from test_lbfgs import history, two_loop

from mpidl.algorithms import ALGORITHMS
from mpidl.algorithms.coordination import BatchSegment, Coordinated, cut_units, targets
from mpidl.algorithms.curvature import direction
from mpidl.algorithms.sandblaster import Sandblaster
from mpidl.engines.virtual.times import Death, Exponential, Jitter, Times
from mpidl.parameters import Range, shards
from mpidl.shards.matrix import Gather, Scatter, whole
from mpidl.shards.vectors import Accrual, Combine, Dot, Multiply, Vectors, copy, merged

COUNTS = [1, 2, 3, 7]


def run(lab, problem, algorithm=None, replicas=1, iterations=100, **options):
    """Train; return the engine and the iterations."""
    algorithm = algorithm or Sandblaster()
    seen = []

    def note(iteration):
        seen.append(iteration)
        return len(seen) >= iterations

    options.setdefault("epochs", 1000)
    times = options.pop("times", Times(compute=Exponential(1.0), latency=Exponential(0.01)))
    engine = lab.engine(problem, algorithm, replicas=replicas, on_iteration=note, times=times, **options)
    engine.run()
    return engine, seen


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_algorithms_have_a_coordinator(name):
    algorithm = ALGORITHMS[name]()
    coordinated = name in ("sandblaster", "stacking")
    assert algorithm.coordinated is isinstance(algorithm, Coordinated) is coordinated
    assert (algorithm.vectors() != ()) is coordinated
    assert algorithm.warm_start_run() is None


@pytest.mark.parametrize(("portions", "unit"), [(1, 2), (7, 1), (7, 2), (45, 4)])
@pytest.mark.parametrize(("batch", "overlap"), [(1.0, 0.25), (0.7, 0.4), (0.9, 0.5), (0.5, 0.01)])
def test_no_evaluation_has_more_units_than_it_says(portions, unit, batch, overlap):
    algorithm = Sandblaster(unit=unit, batch=batch, overlap=overlap)
    request = next(algorithm.coordinator(portions))
    assert 0 < len(cut_units(request.segments, unit)) <= algorithm.units(portions)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("k", [0, 1, 6])
def test_the_direction_on_shards_is_that_of_the_two_loop_recursion(count, k):
    s, y, g = history(k, 23, seed=k)
    names = [f"s{i}" for i in range(k)] + [f"y{i}" for i in range(k)] + ["g"]
    basis = dict(zip(names, [*s, *y, g], strict=True))
    parts = [
        Vectors({n: v[slice(*part)].copy() for n, v in basis.items()} | {"d": np.empty(part.size)})
        for part in shards(23, count)
    ]
    pairs = tuple((a, b) for a in names for b in names)
    products = np.sum([vectors.carry_out([Dot(pairs)]) for vectors in parts], axis=0)
    coefficients = direction(products.reshape(len(names), -1))
    for vectors in parts:
        vectors.carry_out([Combine("d", tuple(zip(coefficients.tolist(), names, strict=True)))])
    found, expected = np.concatenate([vectors["d"] for vectors in parts]), two_loop(s, y, g)
    assert np.linalg.norm(found - expected) <= 1e-12 * np.linalg.norm(expected)


def test_operations():
    vectors = Vectors({"a": np.arange(5.0), "b": np.full(5, 2.0), "c": np.empty(5)})
    results = vectors.carry_out(
        [
            copy("c", "a"),
            Combine("c", ((1.0, "c"), (0.5, "b"))),
            Dot((("a", "c"), ("b", "b"))),
            Combine("a", ((-1.0, "a"),)),
            Multiply("b", "a"),
        ]
    )
    assert results == [0 * 1 + 1 * 2 + 2 * 3 + 3 * 4 + 4 * 5, 20.0]
    np.testing.assert_array_equal(vectors["c"], np.arange(5) + 1)
    np.testing.assert_array_equal(vectors["b"], -2.0 * np.arange(5))
    vectors.carry_out([Combine("c")])
    assert not vectors["c"].any()


@pytest.mark.parametrize("count", COUNTS)
def test_a_range_of_a_vector_is_read_and_written_wherever_its_elements_are(count):
    whole_vector = np.random.default_rng(1).normal(size=23)
    parts = [Vectors({"a": whole_vector[slice(*part)].copy()}, start=part.start) for part in shards(23, count)]

    def read(*arguments):
        (pieces,) = merged([vectors.carry_out([Gather("a", *arguments)]) for vectors in parts])
        return whole(pieces)

    np.testing.assert_array_equal(read(), whole_vector)
    np.testing.assert_array_equal(read(Range(5, 19)), whole_vector[5:19])
    for start, values in ((4, np.arange(15.0)), (0, np.ones(1)), (22, np.full(1, 7.0))):
        for vectors in parts:
            assert vectors.carry_out([Scatter("a", start, values)]) == []
        whole_vector[start : start + len(values)] = values
    np.testing.assert_array_equal(read(), whole_vector)
    # What was read isn't changed by what is written later.
    before, copied = read(), whole_vector.copy()
    parts[0].carry_out([Scatter("a", 0, np.zeros(23))])
    np.testing.assert_array_equal(before, copied)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_least_squares_are_solved(lab, least_squares, servers, replicas):
    problem = least_squares()
    engine, seen = run(lab, problem, servers=servers, replicas=replicas, iterations=60)
    everything = problem[1].gather(np.arange(problem[1].samples))
    expected = np.linalg.lstsq(everything.inputs.astype(float), everything.targets[:, 0].astype(float), rcond=None)[0]
    np.testing.assert_allclose(engine.parameters(), expected, rtol=1e-6, atol=1e-8)
    assert all(a.objective >= b.objective for a, b in pairwise(seen))


@pytest.mark.parametrize("replicas", [1, 3])
def test_samples_count_what_their_batches_weigh(lab, least_squares, weighed, replicas):
    problem, weigh = weighed(least_squares())
    engine, seen = run(lab, problem, servers=2, replicas=replicas, iterations=60)
    everything = problem[1].gather(np.arange(problem[1].samples))
    root = np.empty(problem[1].samples)
    for indices in lab.batches(problem, epochs=1):
        root[indices] = np.sqrt(weigh(indices) / len(indices))
    inputs, targets = everything.inputs * root[:, None], everything.targets[:, 0] * root
    expected, (residual,), *_ = np.linalg.lstsq(inputs, targets, rcond=None)
    np.testing.assert_allclose(engine.parameters(), expected, rtol=1e-6, atol=1e-8)
    assert seen[-1].objective == pytest.approx(residual / 2 / (root @ root), rel=1e-9)


@pytest.mark.parametrize("distance", [3.0, 0.01])
def test_iterations_are_those_of_l_bfgs_b(lab, least_squares, distance):
    """Where the first gradient is longer than 1 and where it is shorter."""
    minimize = pytest.importorskip("scipy.optimize").minimize
    problem = least_squares()
    everything = problem[1].gather(np.arange(problem[1].samples))
    solution = np.linalg.lstsq(everything.inputs.astype(float), everything.targets[:, 0].astype(float), rcond=None)[0]
    start = solution + distance * np.random.default_rng(1).normal(size=solution.size)
    problem[0].parameters[:] = start
    _, seen = run(lab, problem, iterations=8)

    def evaluate(x):
        problem[0].parameters[:] = x
        loss, gradient = problem[0].loss_and_gradient(everything)
        return loss, gradient.copy()

    expected = []
    options = {"maxcor": 10, "maxiter": 8, "ftol": 0, "gtol": 0}
    minimize(
        evaluate, start, jac=True, method="L-BFGS-B", options=options,
        callback=lambda intermediate_result: expected.append(intermediate_result.fun),
    )  # fmt: skip
    assert [each.objective for each in seen] == pytest.approx(expected, rel=1e-7)


def test_batches_that_change_get_near_the_solution(lab, least_squares):
    problem = least_squares()
    engine, seen = run(lab, problem, Sandblaster(batch=0.7, overlap=0.4), replicas=3, iterations=40)
    everything = problem[1].gather(np.arange(problem[1].samples))
    expected = np.linalg.lstsq(everything.inputs.astype(float), everything.targets[:, 0].astype(float), rcond=None)[0]
    assert np.linalg.norm(engine.parameters() - expected) < 0.2 * np.linalg.norm(expected)
    assert seen[-1].objective < 0.2 * seen[0].objective


def test_curvature_is_that_of_what_two_batches_have_in_common(lab, least_squares):
    problem = least_squares()
    algorithm = Sandblaster(batch=0.5, overlap=0.4)
    engine, seen = run(lab, problem, algorithm, iterations=7, servers=1)
    (shard,) = engine.shards
    state = seen[-1].state
    step, difference = (shard.vectors[f"{letter}{state['order'][-1]}"] for letter in "sy")
    batches = lab.batches(problem, epochs=1)
    size = round(0.5 * len(batches))
    shared = round(0.4 * size)
    first = state["batch"] * (size - shared)
    common = np.concatenate([batches[i % len(batches)] for i in range(first, first + shared)])
    change = lab.gradient(problem, step, common) - lab.gradient(problem, np.zeros_like(step), common)
    np.testing.assert_allclose(difference, change, rtol=1e-9, atol=1e-12)
    assert all(iteration.evaluations <= 2 for iteration in seen)


class Integers:
    """A model whose gradients are whole numbers that tell their samples."""

    def __init__(self, size=13):
        self.parameters = np.zeros(size)

    def loss_and_gradient(self, batch):
        # The mean of a batch times its number of samples is a whole number.
        total = batch.inputs[:, :1].sum(axis=0) * np.arange(1, self.parameters.size + 1)
        return float(batch.inputs[:, 0].mean()), total / len(batch.inputs)


@pytest.mark.parametrize(
    ("replicas", "deaths"),
    [
        (1, ()),
        (3, ()),
        (7, ()),
        (4, (Death(1, 1.3), Death(2, 2.1, returns=3.0))),
        (2, (Death(0, 0.7),)),
    ],
)
@pytest.mark.parametrize("unit", [1, 2])
@pytest.mark.parametrize("backups", [True, False])
def test_every_portion_is_accrued_exactly_once(lab, numbered, replicas, deaths, unit, backups):
    model = Integers()
    times = Times(compute=Exponential(0.3), latency=Exponential(0.05), slow={0: 8.0}, deaths=deaths)
    engine, _ = run(
        lab, (model, numbered), Sandblaster(unit=unit, backups=backups), replicas=replicas, iterations=3, times=times,
        chunk=4,
    )  # fmt: skip
    total = np.arange(numbered.samples).sum()
    gradient = np.concatenate([shard.vectors["gradient"] for shard in engine.shards])
    np.testing.assert_allclose(gradient * numbered.samples, total * np.arange(1, 14), rtol=1e-14)


def test_a_unit_is_accrued_once_chunk_by_chunk():
    vectors = Vectors({"parameters": np.zeros(10), "gradient": np.full(10, 7.0)})
    accrual = Accrual(vectors, [Range(0, 4), Range(4, 8), Range(8, 10)])
    segments = (BatchSegment("gradient", 0, 3),)
    accrual.begin(5, *targets(segments, cut_units(segments, 2)))
    values = np.arange(10.0)
    assert not accrual.add_chunk(5, 0, 0, values[:4], 1.5, 2.0)
    # The worker dies; another sends the whole unit.
    assert [accrual.add_chunk(5, 0, c, values[4 * c : 4 * c + 4], 1.5, 2.0) for c in range(3)] == [False, False, True]
    assert accrual.unfinished().tolist() == [1]
    assert not accrual.add_chunk(4, 1, 0, values[:4], 1.5, 2.0)
    np.testing.assert_array_equal(vectors["gradient"], values)
    assert (accrual.complete, accrual.losses.tolist()) == (1, [1.5, 0.0])


def test_backups_save_the_wait_for_a_slow_replica(lab, least_squares):
    """Each batch ends when the fast ones have done the slow one's unit too."""
    seconds, problem = {}, least_squares()
    for backups in (True, False):
        times = Times(compute=Jitter(1.0, 0.05), slow={2: 10.0})
        engine, seen = run(lab, problem, Sandblaster(unit=1, backups=backups), replicas=3, iterations=5, times=times)
        seconds[backups] = engine.now / sum(iteration.evaluations for iteration in seen)
    ideal = -(-problem[1].samples // lab.batch) / 2.1
    assert seconds[True] < 1.25 * ideal < seconds[False]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_stops_where_only_rounding_is_left(lab, least_squares, seed):
    problem = least_squares()
    problem[0].parameters[:] = np.random.default_rng(seed).normal(size=problem[0].parameters.size)
    _, seen = run(lab, problem, iterations=1000, epochs=100_000)
    best = min(each.objective for each in seen)
    enough = next(number for number, each in enumerate(seen) if each.objective <= best * (1 + 1e-12))
    assert len(seen) - enough <= 5
    # A line search among values that differ by rounding takes up to 20 evaluations.
    assert max(each.evaluations for each in seen[1:]) <= 5
