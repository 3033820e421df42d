"""The model of a user's own factory: found, called, and whatever is wrong with it told in one line."""

import sys

import numpy as np
import pytest

from mpidl.config import from_dict
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.rehearsal import rehearse_own

MODEL = """
import numpy as np

class Model:
    def __init__(self):
        self.parameters = np.zeros(3)

    def loss_and_gradient(self, batch):
        import {name}_neighbour
        return 0.0, np.full(3, {name}_neighbour.ONE)
"""


@pytest.fixture
def factory(tmp_path, monkeypatch):
    """Return a function that writes a module and builds the job whose factory is in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(name, source, function="make"):
        if source is not None:
            (tmp_path / f"{name}.py").write_text(source)
        values = {
            "data": {"source": "synthetic", "shape": [3], "classes": 2, "batch": 8},
            "model": {"factory": f"{name}:{function}"},
        }
        return build(from_dict(values))

    return make


def test_a_factory_may_import_its_neighbours_while_the_model_trains(factory, tmp_path, monkeypatch):
    (tmp_path / "imports_late_neighbour.py").write_text("ONE = 1.0")
    job = factory("imports_late", MODEL.format(name="imports_late") + "def make(dataset, seed):\n    return Model()\n")
    monkeypatch.chdir("/")
    rehearse_own(job)
    assert job.original.loss_and_gradient(None)[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("number", "source", "line"),
    [
        (0, None, "found no module wrong0 in {here} or among the installed ones"),
        (1, "import absent_module", "module wrong1 raised ModuleNotFoundError: No module named 'absent_module'{debug}"),
        (2, "1 +", "module wrong2 raised SyntaxError: invalid syntax (wrong2.py, line 1){debug}"),
        (3, "raise SystemExit('no')", "module wrong3 called sys.exit('no'){debug}"),
        (4, "", "found nothing of that name, expected a function of (dataset, seed)"),
        (5, "make = 3", "found int of that name, expected a function of (dataset, seed)"),
        (
            6,
            "def make(dataset, seed):\n    return None",
            "model: NoneType has no parameters, expected a mpidl.nn.Model",
        ),
    ],
)
def test_a_factory_that_is_none_is_one_line(factory, tmp_path, number, source, line):
    with pytest.raises(UsageError) as error:
        factory(f"wrong{number}", source)
    line = line.format(here=tmp_path, debug=" (MPIDL_DEBUG=1 shows its traceback)")
    assert str(error.value) == f"model.factory: wrong{number}:make: {line}"


@pytest.mark.parametrize("source", ["import torch", "def make(dataset, seed):\n    import torch"])
def test_a_factory_without_its_framework_says_what_to_install(factory, monkeypatch, source):
    monkeypatch.setitem(sys.modules, "torch", None)
    name = f"uninstalled{len(source)}"
    with pytest.raises(UsageError) as error:
        factory(name, source)
    where = f"model.factory: {name}:make: " + ("" if "def" in source else f"module {name}: ")
    assert str(error.value) == where + "torch is not installed, expected `pip install 'mpidl[torch]'`"


def test_a_line_of_the_packages_own_stays_as_it_is(factory, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "mpidl.torch", raising=False)
    with pytest.raises(UsageError) as error:
        factory("uninstalled", "from mpidl.torch import TorchModel")
    line = "mpidl.torch: PyTorch isn't installed: pip install 'mpidl[torch]'"
    assert str(error.value) == f"model.factory: uninstalled:make: module uninstalled: {line}"


@pytest.mark.parametrize(
    ("number", "source", "line"),
    [
        (0, "def make(dataset, seed):\n    1 / 0", "raised ZeroDivisionError: division by zero"),
        (1, "def make(dataset):\n    pass", "raised TypeError: make() takes 1 positional argument but 2 were given"),
        (2, "import sys\ndef make(dataset, seed):\n    sys.exit(3)", "called sys.exit(3)"),
    ],
)
def test_what_a_factory_raises_is_one_line(factory, number, source, line):
    with pytest.raises(UsageError) as error:
        factory(f"raises{number}", source)
    assert str(error.value) == f"model.factory: raises{number}:make {line} (MPIDL_DEBUG=1 shows its traceback)"
    assert error.value.__cause__ is not None


def test_a_job_has_its_model_compute_once_before_the_training(factory):
    job = factory("odd", MODEL.format(name="odd") + "def make(dataset, seed):\n    return Model()\n")
    with pytest.raises(UsageError, match=r"^model: Model.loss_and_gradient raised ModuleNotFoundError: .*odd_neigh"):
        rehearse_own(job)
    assert np.array_equal(job.original.parameters, np.zeros(3))
