"""A module by stages on the ranks of the world computes what the whole one does."""

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mpidl.data.batch import Batch  # noqa: E402
from mpidl.partition.schedules import SCHEDULES  # noqa: E402
from mpidl.partition.section import Section  # noqa: E402
from mpidl.partition.sections import sections_of  # noqa: E402
from mpidl.torch import TorchModel  # noqa: E402

pytestmark = pytest.mark.mpi(min_size=4)


def perceptron():
    torch.manual_seed(2)
    sizes = [64, 257, 255, 256, 10]
    modules = [module for pair in pairwise(sizes) for module in (torch.nn.Linear(*pair), torch.nn.Tanh())]
    return torch.nn.Sequential(*modules[:-1]).double()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_and_figures_are_the_whole_modules(comm, group, schedule):
    random = np.random.default_rng(1)
    batch = Batch(random.normal(size=(403, 64)), random.integers(0, 10, 403))
    whole = TorchModel(perceptron(), "cross_entropy")
    plan = sections_of(whole, comm.size)
    section = Section(whole, plan, comm.rank, schedule=schedule, micro_batches=5)
    section.bind(group)
    for _ in range(2):
        loss, gradient = section.loss_and_gradient(batch)
    figures = section.evaluate(batch)
    section.unbind()
    found = plan.layout.views(np.concatenate(comm.allgather(gradient)))
    expected, gradient = whole.loss_and_gradient(batch)
    assert loss == pytest.approx(expected, rel=1e-12)
    for name, each in whole.layout.views(gradient).items():
        np.testing.assert_allclose(found[name], each, rtol=0, atol=1e-12, err_msg=name)
    evaluated = whole.evaluate(batch)
    if comm.rank == 0:
        assert figures[:2] == (pytest.approx(evaluated.loss, rel=1e-12), evaluated.correct)
