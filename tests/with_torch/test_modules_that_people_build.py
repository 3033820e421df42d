"""Modules of many kinds: trained as by a plain loop, and afterwards by PyTorch as if nothing had been."""

import subprocess
from pathlib import Path

import pytest
import torch

import mpidl
from mpidl.launch.command import command
from zoo import ZOO, differences
from zoo.cases import Case


@pytest.mark.parametrize("name", ZOO)
def test_a_module_equals_a_plain_loop_and_trains_on(tmp_path, name):
    assert differences(name, tmp_path) == []


def complex_weights():
    return torch.nn.Linear(6, 3, dtype=torch.complex128)


class SparseGradient(torch.nn.Module):
    """Has a weight of its own with sparse gradients, which isn't that of an embedding."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(7, 2))

    def forward(self, ids):
        return torch.nn.functional.embedding(ids.long(), self.weight, sparse=True)


def sparse():
    return torch.nn.Sequential(SparseGradient(), torch.nn.Flatten(), torch.nn.Linear(10, 3)).double()


def lazy():
    return torch.nn.LazyLinear(3)


def on_no_device():
    return torch.nn.Linear(6, 3, device="meta")


@pytest.mark.parametrize(
    ("make", "kind", "found"),
    [
        (complex_weights, "vector", "parameter weight is complex128, expected float32 or float64"),
        (sparse, "ids", r"the gradient of 0.weight is sparse, expected a dense one \(sparse = False\)"),
        (lazy, "vector", "parameter weight has no values yet: pass a batch through the module first"),
        (on_no_device, "vector", "parameter weight has no values yet"),
    ],
)
def test_a_refused_module_is_one_line_and_as_before(tmp_path, make, kind, found):
    torch.manual_seed(0)
    module = make()
    before = {name: (id(each), each.is_leaf, each.grad) for name, each in module.named_parameters()}
    with pytest.raises(mpidl.UsageError, match=f"^model: .*{found}") as error:
        mpidl.train(module, Case(make, kind).data(), loss="cross_entropy", dir=tmp_path, batch=4, steps=1)
    assert "\n" not in str(error.value)
    assert {name: (id(each), each.is_leaf, each.grad) for name, each in module.named_parameters()} == before
    assert not list(tmp_path.iterdir())


def test_a_refused_module_trains_on():
    """Its gradients are its owner's, sparse ones, too."""
    torch.manual_seed(0)
    module, ids = sparse(), torch.tensor([[1, 2, 3, 4, 5]])
    with pytest.raises(mpidl.UsageError):
        mpidl.train(module, Case(sparse, "ids").data(), loss="cross_entropy", batch=4, steps=1)
    module(ids).sum().backward()
    assert module[0].weight.grad.is_sparse
    optimiser, before = torch.optim.SparseAdam([module[0].weight]), module[0].weight.detach().clone()
    optimiser.step()
    assert not torch.equal(module[0].weight, before)


@pytest.mark.long
def test_modules_on_three_ranks_equal_plain_loops_and_train_on(tmp_path):
    arguments, environment = command(3, [str(Path(__file__).parents[1] / "zoo_on_ranks.py"), str(tmp_path)])
    found = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    different = {name: lines for name, _, lines in (line.partition(": ") for line in found.stdout.splitlines())}
    assert list(different) == [name for name, case in ZOO.items() if not case.local]
    # Servers don't see what a module does to its own weights; a line says so.
    assert [name for name, lines in different.items() if lines != "[]"] == ["embedding_with_norm"]
    assert "it changes its parameter 0.weight itself, which its shards don't see" in found.stderr
