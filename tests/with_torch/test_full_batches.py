"""Sandblaster on modules: the objective is that of one full batch, whatever its portions, replicas and dropout."""

import numpy as np
import pytest
import torch

import mpidl
from mpidl.algorithms import Sandblaster
from mpidl.config import from_dict
from mpidl.data import Batch, Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Hooks, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Exponential, Times
from mpidl.errors import UsageError
from mpidl.job.build import own_model
from mpidl.job.job import Job
from mpidl.parameters import shards
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.torch import TorchModel
from torch_modules import cnn, functional, mlp

RANDOM = np.random.default_rng(3)
SAMPLES = 103
INPUTS, TARGETS = RANDOM.normal(size=(SAMPLES, 64)), RANDOM.normal(size=(SAMPLES, 10))
WEIGHTS = RANDOM.uniform(0.1, 3.0, SAMPLES)
PORTIONS = Portions(SAMPLES, batch=8, portion=24, seed=1)


def weighted(outputs, targets):
    values, weights = targets
    return ((outputs - values).square().mean(1) * weights).sum() / weights.sum()


def split():
    samples = [(INPUTS[i], (TARGETS[i], WEIGHTS[i])) for i in range(SAMPLES)]
    data = mpidl.Indexed(samples, samples[:1], weight=lambda inputs, targets: targets[1].sum())
    return data.open().as_double().train


def iterate(module, loss, replicas, count, seed=0):
    """Return the iterations of Sandblaster, and the parameters at the end."""
    model, algorithm, seen = TorchModel(module, loss, seed=seed), Sandblaster(), []
    parts = [
        Shard(
            part,
            model.parameters[part.start : part.stop].copy(),
            ScheduledRule(None),
            algorithm.shard_policy(replicas),
            part.size,
            state={name: np.zeros(part.size) for name in algorithm.vectors()},
        )
        for part in shards(model.layout.size, 2)
    ]

    def note(iteration):
        seen.append(iteration)
        return len(seen) == count

    training = Training(algorithm, model, split(), Schedule(PORTIONS, epochs=1000))
    time = VirtualTime(Times(Exponential(1.0), Exponential(0.1)), seed=replicas)
    engine = VirtualEngine(training, parts, replicas, time=time, hooks=Hooks(on_iteration=note))
    engine.run()
    return seen, engine.parameters()


@pytest.mark.parametrize("replicas", [1, 3])
def test_uneven_weighted_portions_are_one_full_batch(replicas):
    (iteration,), x = iterate(mlp(dtype=torch.float64), weighted, replicas, count=1)
    whole = TorchModel(mlp(dtype=torch.float64), weighted)
    whole.parameters[:] = x
    loss, gradient = whole.loss_and_gradient(Batch(INPUTS, (TARGETS, WEIGHTS)))
    assert iteration.objective == pytest.approx(loss, rel=1e-12)
    assert iteration.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-12)


def test_dropout_is_the_same_in_each_evaluation():
    """Its numbers follow from a batch's, so that there is one function to minimise, on any number of replicas."""
    runs = [iterate(mlp(dtype=torch.float64, dropout=0.3), weighted, replicas, count=12) for replicas in (1, 4)]
    (seen, x), (others, y) = runs
    assert [each.objective for each in seen] == pytest.approx([each.objective for each in others], rel=1e-9)
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)
    model = TorchModel(mlp(dtype=torch.float64, dropout=0.3), weighted)
    model.parameters[:] = x
    minibatches = [each for number in range(PORTIONS.per_epoch) for each in PORTIONS.minibatches(number)]
    batches = [split().take(each) for each in minibatches]
    losses = [model.loss_and_gradient(each)[0] * each.total for each in batches]
    assert seen[-1].objective == pytest.approx(sum(losses) / WEIGHTS.sum(), rel=1e-12)
    plain = model.evaluate(Batch(INPUTS, (TARGETS, WEIGHTS), weight=1.0))[0]
    assert abs(seen[-1].objective - plain) > 0.01 * plain
    assert seen[-1].objective < seen[0].objective
    others, _ = iterate(mlp(dtype=torch.float64, dropout=0.3), weighted, 1, count=1, seed=1)
    assert others[0].objective != pytest.approx(seen[0].objective, rel=1e-3)


def test_statistics_beside_the_parameters_are_refused():
    config = from_dict(
        {"data": {"source": "digits"}, "model": {"factory": "a:b"}, "algorithm": {"name": "sandblaster"}}
    )
    dataset = mpidl.Digits().open()
    with pytest.raises(UsageError, match=r"^algorithm.name: sandblaster .*\(norms.0.running_mean\) isn't supported$"):
        Job.of(config, dataset, own_model(cnn(), config, functional.cross_entropy))
