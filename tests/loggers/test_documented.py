"""The loggers that the manual shows."""

import sys
import textwrap
from itertools import takewhile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import mpidl

PAGE = Path(__file__).resolve().parents[2] / "docs" / "seeing.rst"


def shown(name, old="", new=""):
    """Return a class in a block of code on the page, with a text in place of another one."""
    (block,) = [block for block in PAGE.read_text().split("::\n")[1:] if f"    class {name}" in block]
    lines = takewhile(lambda line: not line or line[0] == " ", block.splitlines())
    found = {"mpidl": mpidl}
    exec(textwrap.dedent("\n".join(lines)).replace(old or "\0", new), found)
    return found[name]


def train(path, logger, **keywords):
    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    given = {"epochs": 1, "device": "cpu", "dir": path, "loggers": [logger]} | keywords
    return mpidl.train(network, mpidl.Digits(), **given)


@pytest.fixture
def mlflow(monkeypatch):
    """Stands for MLflow, and checks what its functions demand."""
    stub = ModuleType("mlflow")
    stub.calls, stub.params, stub.metrics = [], {}, []

    def start_run(run_id=None, run_name=None):
        stub.calls.append(("start", run_id))
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "4711"))

    def log_metrics(metrics, step):
        assert all(isinstance(value, int | float) for value in metrics.values())
        assert isinstance(step, int)
        stub.metrics.append((step, metrics))

    def log_params(params):
        assert not params.keys() & stub.params.keys(), "MLflow refuses other values of a key"
        stub.params.update(params)

    stub.start_run, stub.log_metrics, stub.log_params = start_run, log_metrics, log_params
    stub.end_run = lambda status: stub.calls.append(("end", status))
    monkeypatch.setitem(sys.modules, "mlflow", stub)
    return stub


def test_mlflow(tmp_path, mlflow, capfd):
    summary = train(tmp_path, shown("MLflow")())
    train(tmp_path, shown("MLflow")(), epochs=2, resume=True)
    assert mlflow.calls == [("start", None), ("end", "FINISHED"), ("start", "4711"), ("end", "FINISHED")]
    assert (mlflow.params["run.name"], mlflow.params["data.source"]) == ("run", "digits")
    assert summary["test_loss"] in [metrics.get("test_loss") for _, metrics in mlflow.metrics]
    assert mlflow.metrics[-1][0] == 2 * 1437
    assert "loggers:" not in capfd.readouterr().err


def test_a_table_of_runs(tmp_path, capfd):
    table = tmp_path / "runs.csv"
    summary = train(tmp_path, shown("Table", "/groups/vision/runs.csv", str(table))())
    assert table.read_text() == f"{tmp_path / 'run'},{summary['test_accuracy']},{summary['seconds']}\n"
    assert "loggers:" not in capfd.readouterr().err
