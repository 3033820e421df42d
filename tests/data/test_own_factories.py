"""Data that a function of the user's own returns."""

import sys

import pytest

from mpidl.config import from_dict, load
from mpidl.data import Factory
from mpidl.errors import UsageError

SOURCE = """
import numpy as np
from mpidl.data import Arrays, Digits, Indexed

class Ones:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return np.ones(3), index % 2

def indexed():
    return Indexed(Ones(), Ones(), classes=2)

def arrays():
    x, y = np.zeros((6, 3)), np.arange(6) % 2
    return Arrays((x, y), (x, y))

def source():
    return Digits()

def dataset():
    return Digits().open()

def nothing():
    return None

def raises():
    raise OSError("no tape")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_factories.py").write_text(SOURCE)
    yield "own_factories"
    sys.modules.pop("own_factories", None)


@pytest.mark.parametrize(
    ("function", "found"), [("indexed", (3,)), ("arrays", (3,)), ("source", (8, 8)), ("dataset", (8, 8))]
)
def test_a_function_returns_data(module, function, found):
    values = {"data": {"factory": f"{module}:{function}", "batch": 2}, "model": {"factory": "a:b"}}
    config = from_dict(values)
    assert config.data_source == Factory(f"{module}:{function}")
    assert config.data_source.open().input_shape == found
    again = from_dict(config.to_dict())
    assert (again.data_source, again.data.batch) == (config.data_source, 2)


def test_a_command_line_takes_a_factory_for_the_source_of_a_file(tmp_path):
    (tmp_path / "job.toml").write_text('data.source = "digits"\nmodel.factory = "a:b"\n')
    config = load(tmp_path / "job.toml", ["data.factory=c:d", "data.workers=3"])
    assert config.data_source == Factory("c:d", workers=3)


def test_workers_of_the_configuration(module):
    train = Factory(f"{module}:indexed", workers=2).open().train
    assert (train.lookahead, Factory(f"{module}:indexed").open().train.lookahead) == (4, 2)


@pytest.mark.parametrize(
    ("function", "workers", "line"),
    [
        ("nothing", None, " returned None, expected a Dataset or a source, such as mpidl.Indexed(train, test)"),
        ("raises", None, " raised OSError: no tape (MPIDL_DEBUG=1 shows its traceback)"),
        ("absent", None, ": found nothing of that name, expected a function of no arguments"),
    ],
)
def test_what_is_wrong_is_one_line(module, function, workers, line):
    with pytest.raises(UsageError) as error:
        Factory(f"{module}:{function}", workers).open()
    assert str(error.value) == f"data.factory: {module}:{function}{line}"


def test_workers_are_an_indexeds(module):
    with pytest.raises(UsageError, match=r"^data.workers: 2, but \w+:arrays returned an Arrays: only"):
        Factory(f"{module}:arrays", 2).open()
