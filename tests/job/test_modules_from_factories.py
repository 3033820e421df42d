"""What a factory returns: modules, with and without their losses."""

import pytest

torch = pytest.importorskip("torch")

from mpidl.config import from_dict  # noqa: E402
from mpidl.errors import UsageError  # noqa: E402
from mpidl.job.build import build  # noqa: E402
from mpidl.torch import TorchModel  # noqa: E402

FACTORIES = """
import numpy, torch

def module(dataset, seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, dataset.classes))

def both(dataset, seed):
    return module(dataset, seed), torch.nn.functional.cross_entropy

def empty(dataset, seed):
    return torch.nn.ReLU()

def loss(outputs, targets):
    return 2 * torch.nn.functional.cross_entropy(outputs, targets)

class Model:
    parameters = numpy.zeros(3)
    def loss_and_gradient(self, batch):
        return 0.0, self.parameters * 0

def model(dataset, seed):
    return Model()
"""


@pytest.fixture
def built(tmp_path, monkeypatch):
    (tmp_path / "module_factories.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(factory, **model):
        section = {"factory": f"module_factories:{factory}", **model}
        return build(from_dict({"data": {"source": "digits"}, "model": section, "run": {"seed": 3}})).original

    return make


def test_a_module_and_the_name_of_a_loss(built):
    model = built("module", loss="cross_entropy", micro_batches=2)
    assert isinstance(model, TorchModel)
    assert model.loss is torch.nn.functional.cross_entropy
    assert model.layout.size == 650


def test_a_module_and_a_loss_of_ones_own(built):
    assert built("both").loss is torch.nn.functional.cross_entropy
    assert built("module", loss="module_factories:loss").loss.__name__ == "loss"


@pytest.mark.parametrize(
    ("factory", "keys", "found"),
    [
        ("module", {}, r"factory: module_factories:module: model.loss: none, expected one for the module Sequential$"),
        ("module", {"loss": "cross"}, r"model.loss: 'cross', expected a loss of torch.nn.functional, or module:func.*"),
        (
            "module",
            {"loss": "module_factories:none"},
            r"model.loss: module_factories:none: found nothing of that name, .*",
        ),
        ("empty", {"loss": "mse_loss"}, r"ReLU has no parameters, expected at least one to train$"),
        ("model", {"loss": "mse_loss"}, r"model.loss: is for a torch.nn.Module, found a Model$"),
        ("model", {"compile": True}, r"model.compile: is for a torch.nn.Module, found a Model$"),
    ],
)
def test_what_does_not_fit_is_one_line(built, factory, keys, found):
    with pytest.raises(UsageError, match=found) as error:
        built(factory, **keys)
    assert "\n" not in str(error.value)


def test_keys_of_modules_are_not_for_layers():
    with pytest.raises(UsageError, match=r"model.micro_batches: only for modules returned by model.factory"):
        from_dict(
            {"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}], "micro_batches": 2}}
        )
