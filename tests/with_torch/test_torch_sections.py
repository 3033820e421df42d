"""Modules by stages, on threads: the gradient is that of the whole module."""

import re
from functools import partial

import numpy as np
import pytest
import torch

import threads
from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.nn.adaptation import ModelError, adapt
from mpidl.nn.model import Evaluation
from mpidl.parameters.ranges import Range, split
from mpidl.partition.schedules import SCHEDULES
from mpidl.partition.section import Section
from mpidl.partition.sections import sections_of
from mpidl.torch import TorchModel
from torch_modules import mlp

nn = torch.nn
schedules = pytest.mark.parametrize("schedule", SCHEDULES)


def images():
    torch.manual_seed(1)
    modules = [
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Sequential(nn.Conv2d(4, 5, 3), nn.Conv2d(5, 5, 1)),
        nn.Flatten(),
        nn.LeakyReLU(inplace=True),
        nn.Linear(180, 11, bias=False),
        nn.GELU(),
        nn.Linear(11, 10),
    ]
    return nn.Sequential(*modules).double()


def model_of(make, loss="cross_entropy"):
    return TorchModel(make(), loss)


def batch_of(samples, seed=0):
    random = np.random.default_rng([seed, samples])
    return Batch(random.normal(size=(samples, 64)), random.integers(0, 10, samples), number=seed)


def on_ranks(make, stages, work, schedule="one_forward_one_backward", micro_batches=4, frozen=()):
    """Return what `work` makes of each stage, bound to a group of threads."""

    whole = make()
    plan = sections_of(whole, stages)
    # The first use takes over the module; of all ranks, only these threads share one.
    assert whole.parameters.size

    def rank(group):
        section = Section(whole, plan, group.rank, schedule=schedule, micro_batches=micro_batches)
        section.freeze(frozen)
        section.bind(group)
        found = work(section)
        section.unbind()
        return found

    return threads.run(stages, rank)


def by_name(make, stages, vectors):
    """Return the tensors of a vector that ranks hold by slices."""
    plan = sections_of(make(), stages)
    return plan.layout.views(np.concatenate(vectors))


@schedules
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_training_is_that_of_the_whole_module(stages, schedule):
    make = partial(model_of, images)
    batches = [batch_of(samples, seed) for seed, samples in enumerate([11, 7, 11, 2, 1])]

    def work(section):
        losses = []
        for batch in batches:
            loss, gradient = section.loss_and_gradient(batch)
            losses.append(loss)
            section.parameters[:] -= 0.1 * gradient
        return losses, section.parameters.copy()

    results = on_ranks(make, stages, work, schedule)
    whole, losses = make(), []
    for batch in batches:
        loss, gradient = whole.loss_and_gradient(batch)
        losses.append(loss)
        whole.parameters[:] -= 0.1 * gradient
    for own, _ in results:
        np.testing.assert_allclose(own, losses, rtol=1e-10)
    found = by_name(make, stages, [vector for _, vector in results])
    for name, expected in whole.layout.views(whole.parameters).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(torch.arange(10).double(), ignore_index=3), nn.CrossEntropyLoss(reduction="sum")]
)
def test_parts_count_what_the_loss_counts(loss):
    batch = batch_of(12)
    batch.targets[:5] = 3  # nothing counts in the first micro-batch

    def make():
        return TorchModel(images(), loss)

    def work(section):
        loss, gradient = section.loss_and_gradient(batch)
        return loss, gradient.copy(), section.loss_sums(loss, batch)

    results = on_ranks(make, 2, work, micro_batches=3)
    whole = make()
    expected, gradient = whole.loss_and_gradient(batch)
    assert results[0][0] == pytest.approx(expected, rel=1e-12)
    evaluated = whole.evaluate(batch)
    for sums in (results[0][2], results[1][2], whole.loss_sums(expected, batch)):
        assert sums == pytest.approx((evaluated.loss, evaluated.weight), rel=1e-12)
    found = by_name(make, 2, [vector for _, vector, _ in results])
    for name, each in make().layout.views(gradient).items():
        np.testing.assert_allclose(found[name], each, rtol=0, atol=1e-12, err_msg=name)


@schedules
@pytest.mark.parametrize("frozen", ["1", "3", "8", "[136]", "[368]", "(1.weight|8.bias)"])
def test_groups_may_freeze_whole_stages_or_parts_of_them(schedule, frozen):
    """The modules named by the digits, each of which is what its stage has to train."""
    batch, names = batch_of(11), [name for name in model_of(images).layout.shapes if re.match(frozen, name)]

    def make():
        model = model_of(images)
        model.freeze(names)
        return model

    results = on_ranks(make, 4, lambda section: section.loss_and_gradient(batch)[1].copy(), schedule, frozen=names)
    whole = make()
    expected = whole.layout.views(whole.loss_and_gradient(batch)[1])
    for name, each in by_name(make, 4, results).items():
        np.testing.assert_allclose(each, expected[name], rtol=0, atol=1e-12, err_msg=name)
        assert each.any() == (name not in names)


def normalised():
    torch.manual_seed(1)
    modules = [nn.Linear(64, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Linear(9, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)]
    return nn.Sequential(*modules).double()


@schedules
def test_statistics_are_those_of_micro_batches(schedule):
    make, batch = partial(model_of, normalised), batch_of(12)
    results = on_ranks(make, 3, lambda section: section.loss_and_gradient(batch)[1].copy(), schedule, 3)
    found = by_name(make, 3, results)
    whole = normalised()
    before = {name: each.clone() for name, each in whole.state_dict().items()}
    for part in split(12, 3):
        own = slice(*part)
        outputs = whole(torch.from_numpy(batch.inputs[own]))
        (nn.functional.cross_entropy(outputs, torch.from_numpy(batch.targets[own])) / 3).backward()
    for name, parameter in whole.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad, rtol=0, atol=1e-12, err_msg=name)
    for name, after in whole.state_dict().items():
        if "running" in name:
            np.testing.assert_allclose(found[name], before[name] - after, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_evaluations_and_outputs_are_on_rank_0(stages):
    make, batch = partial(model_of, normalised), batch_of(13)
    whole = make()
    whole.loss_and_gradient(batch)
    expected, outputs = whole.evaluate(batch), whole.outputs(batch)

    def work(section):
        section.loss_and_gradient(batch)
        return section.evaluate(batch), section.outputs(batch)

    (first, answer), *others = on_ranks(make, stages, work)
    assert first[:2] == (pytest.approx(expected.loss, rel=1e-12), expected.correct)
    np.testing.assert_allclose(first.outputs, outputs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(answer, outputs, rtol=0, atol=1e-12)
    assert others == [(Evaluation(0.0, 0), None)] * (stages - 1)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_stage_holds_its_own_tensors_only_with_the_whole_modules_initial_values(stages):
    make = partial(model_of, normalised)
    whole, plan = make(), sections_of(make(), stages)
    vectors = on_ranks(make, stages, lambda section: (section.parameters.copy(), section.slice))
    assert [own.size for own, _ in vectors] == [part.size for _, part in vectors]
    found = plan.layout.views(np.concatenate([own for own, _ in vectors]))
    for name, expected in whole.layout.views(whole.parameters).items():
        assert np.array_equal(found[name], expected), name
    marks = np.zeros(plan.layout.size)
    for part in plan.statistics:
        marks[slice(*part)] = 1
    assert {name for name, each in plan.layout.views(marks).items() if each.all()} == {
        name for name in whole.layout.shapes if "running" in name
    }
    section = on_ranks(make, stages, lambda section: section.initial(Range(3, 90)))[0]
    assert np.array_equal(section, np.concatenate([own for own, _ in vectors])[3:90])


def test_stages_are_balanced_by_parameters_or_by_given_costs():
    model = model_of(images)
    assert [tuple(run) for run in sections_of(model, 2).runs] == [(0, 6), (6, 9)]
    costs = [0, 9, 1, 1, 1, 1, 1, 1, 1]
    assert [tuple(run) for run in sections_of(model, 2, costs).runs] == [(0, 3), (3, 9)]


def tied():
    module = mlp(dtype=torch.float64)
    again = nn.Linear(10, 33).double()
    return nn.Sequential(*module, again, nn.ReLU(), nn.Linear(33, 10).double())


def test_what_trains_whole_says_so():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(64, 10)

        def forward(self, values):
            return self.last(values)

    with pytest.raises(UsageError, match=r"topology\.stages: 2, but a Own can't be cut, expected 1"):
        sections_of(model_of(Own), 2)
    staged = mlp()
    staged.state = staged.load_state = dict
    with pytest.raises(UsageError, match=r"topology\.stages: 2, but Sequential has a state of its own, expected 1"):
        sections_of(TorchModel(staged, "cross_entropy"), 2)
    with pytest.raises(UsageError, match=r"topology\.stages: 3, expected at most one for each of 2 trained modules"):
        sections_of(model_of(mlp), 3)
    module = tied()
    module[7].weight = module[1].weight = nn.Parameter(torch.zeros(10, 33).double())
    with pytest.raises(UsageError, match=r"7\.weight is 1\.weight in another stage"):
        sections_of(TorchModel(module, "cross_entropy"), 2)

    class Mine:
        parameters = np.zeros(3)

        def loss_and_gradient(self, batch):
            return 0.0, self.parameters

    with pytest.raises(UsageError, match=r"topology\.stages: 2, but a user's own model can't be cut, expected 1"):
        sections_of(adapt(Mine()), 2)


def test_values_without_samples_are_one_line():
    def make():
        return model_of(lambda: nn.Sequential(nn.Linear(64, 8), nn.Flatten(0), nn.Linear(8, 10)).double())

    with pytest.raises(ModelError, match=r"model: stage 0 returned \(16,\), expected a tensor of 2 samples"):
        on_ranks(make, 2, lambda section: section.loss_and_gradient(batch_of(8)))
