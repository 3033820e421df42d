"""Loggers: what they are called with, what their errors do, and those that the manual shows."""

import json
import re
import sys
import textwrap
from itertools import takewhile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import mpidl
from mpidl.config import from_dict, load
from mpidl.errors import UsageError
from mpidl.runs.simulate import simulate

GIVEN = {"batch": 64, "device": "cpu", "report": 1e-3}


class Kept(mpidl.Logger):
    """Keeps all calls."""

    def __init__(self):
        self.calls = []

    def start(self, directory, config, samples):
        self.calls.append(("start", (directory, config, samples)))

    def record(self, record):
        self.calls.append(("record", record))

    def event(self, event):
        self.calls.append(("event", event))

    def finish(self, summary):
        self.calls.append(("finish", summary))

    def given(self, method):
        return [value for name, value in self.calls if name == method]


MADE = []


def make():
    MADE.append(Kept())
    return MADE[-1]


def make_nothing():
    return None


class Broken(mpidl.Logger):
    def record(self, record):
        raise OSError(28, "No space left on device")


def train(path, loggers, **keywords):
    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    return mpidl.train(network, mpidl.Digits(), loggers=loggers, dir=path, **{"epochs": 1, **GIVEN, **keywords})


def lines(path, name):
    return [json.loads(line) for line in (path / "run" / name).read_text().splitlines()]


def test_a_logger_gets_what_the_files_get(tmp_path):
    kept = Kept()
    summary = train(tmp_path, [kept])
    assert [name for name, _ in kept.calls[:2]] == ["start", "event"]
    (directory, config, samples), *others = kept.given("start")
    assert (directory, config["run"]["name"], config["data"]["batch"], samples) == (tmp_path / "run", "run", 64, 0)
    assert not others
    assert kept.given("record") == lines(tmp_path, "metrics.jsonl")
    assert kept.given("event") == lines(tmp_path, "events.jsonl")
    assert kept.given("finish") == [summary]
    assert kept.calls[-1][0] == "finish"


def test_a_resumed_run_starts_it_again_where_it_goes_on(tmp_path):
    train(tmp_path, [])
    before = len(lines(tmp_path, "events.jsonl"))
    kept, also = Kept(), Kept()
    train(tmp_path, [kept, also], epochs=2, resume=True)
    assert kept.given("start")[0][2] == 1437
    assert min(record["samples"] for record in kept.given("record")) >= 1437
    assert kept.given("event") == lines(tmp_path, "events.jsonl")[before:]
    assert kept.calls == also.calls
    assert kept.given("record")[0] is not also.given("record")[0]


def test_the_configuration_names_a_function_that_makes_one(tmp_path):
    MADE.clear()
    train(tmp_path, [f"{__name__}:make"])
    (kept,) = MADE
    assert kept.given("record")
    assert load(tmp_path / "run" / "config.toml").run.loggers == (f"{__name__}:make",)
    train(tmp_path, [], config={"run": {"loggers": [f"{__name__}:make"]}})
    assert [name for name, _ in MADE[1].calls if name != "record"] == ["start", "event", "event", "finish"]


def test_a_simulated_run_has_the_clock_of_its_cluster(tmp_path):
    MADE.clear()
    simulate(
        from_dict(
            {
                "run": {"dir": str(tmp_path), "epochs": 1, "loggers": [f"{__name__}:make"]},
                "data": {"source": "digits"},
                "model": {"layer": [{"type": "dense", "units": 10}]},
                "virtual": {"compute": 0.1},
            }
        ),
        3,
    )
    records = MADE[0].given("record")
    assert all("unix_time" not in each for each in records)
    assert records[-1]["samples"] == 1437


def test_an_error_ends_no_run_and_is_said_once(tmp_path, capfd):
    class Late(Broken):
        def finish(self, summary):
            (tmp_path / "finished").touch()

    kept = Kept()
    train(tmp_path, [Late(), kept], report=100.0, epochs=3)
    assert kept.given("record") == lines(tmp_path, "metrics.jsonl")
    number = len(kept.given("record"))
    assert (tmp_path / "finished").exists()
    said = [line for line in capfd.readouterr().err.splitlines() if "Late" in line]
    cause = "OSError: [Errno 28] No space left on device (MPIDL_DEBUG=1 shows its traceback)"
    assert number > 1
    assert said == [
        f"mpidl: loggers: Late raised {cause}; the run continues",
        f"mpidl: loggers: Late raised {number} errors and missed those records",
    ]


def test_a_logger_that_cannot_start(tmp_path, capfd):
    class Shut(Kept):
        def start(self, directory, config, samples):
            raise ConnectionError("no route to mlflow")

    line = "loggers: Shut raised ConnectionError: no route to mlflow (MPIDL_DEBUG=1 shows its traceback)"
    with pytest.raises(UsageError, match=f"^{re.escape(line)}$"):
        train(tmp_path, [Kept(), Shut()])
    assert not list(tmp_path.iterdir())
    train(tmp_path, [])
    capfd.readouterr()
    shut = Shut()
    train(tmp_path, [shut], epochs=2, resume=True)
    assert f"mpidl: {line}; the run continues without it" in capfd.readouterr().err
    assert not shut.calls


def test_a_run_that_fails_finishes_without_a_summary(tmp_path):
    kept = Kept()

    def stop(record):
        raise ValueError("enough")

    with pytest.raises(mpidl.MpidlError, match="enough"):
        train(tmp_path, [kept], callbacks=[stop])
    assert kept.given("finish") == [None]
    diverged = Kept()
    with pytest.raises(mpidl.MpidlError, match="loss"):
        train(tmp_path, [diverged], rule=mpidl.Sgd(1e30), l2=1.0, name="diverged")
    assert diverged.given("finish") == [None]
    assert diverged.given("event")[-1]["event"] == "failure"


@pytest.mark.parametrize(
    ("loggers", "text"),
    [
        ("tensorboard", "loggers: expected a list of loggers, found 'tensorboard'"),
        ([print], "loggers[0]: expected an object of a class derived from mpidl.Logger, found <built-in"),
        ([Kept], "loggers[0]: expected an object of a class derived from mpidl.Logger, found <class"),
        (["tensorbord"], "loggers[0]: unknown name 'tensorbord', did you mean 'tensorboard'?"),
        ([f"{__name__}:gone"], f"run.loggers[0]: {__name__}:gone: found nothing of that name, expected a function"),
        (
            [f"{__name__}:make_nothing"],
            f"run.loggers[0]: {__name__}:make_nothing: expected an object of a class derived from mpidl.Logger, found",
        ),
    ],
)
def test_what_is_no_logger(tmp_path, loggers, text):
    with pytest.raises(UsageError, match=f"^{re.escape(text)}"):
        train(tmp_path, loggers)
    assert not list(Path(tmp_path).iterdir())


PAGE = Path(__file__).resolve().parents[2] / "docs" / "seeing.rst"


def shown(name, old="", new=""):
    """Return a class in a block of code on the page, with a text in place of another one."""
    (block,) = [block for block in PAGE.read_text().split("::\n")[1:] if f"    class {name}" in block]
    lines = takewhile(lambda line: not line or line[0] == " ", block.splitlines())
    found = {"mpidl": mpidl}
    exec(textwrap.dedent("\n".join(lines)).replace(old or "\0", new), found)
    return found[name]


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
    summary = train(tmp_path, [shown("MLflow")()])
    train(tmp_path, [shown("MLflow")()], epochs=2, resume=True)
    assert mlflow.calls == [("start", None), ("end", "FINISHED"), ("start", "4711"), ("end", "FINISHED")]
    assert (mlflow.params["run.name"], mlflow.params["data.source"]) == ("run", "digits")
    assert summary["test_loss"] in [metrics.get("test_loss") for _, metrics in mlflow.metrics]
    assert mlflow.metrics[-1][0] == 2 * 1437
    assert "loggers:" not in capfd.readouterr().err


def test_a_table_of_runs(tmp_path, capfd):
    table = tmp_path / "runs.csv"
    summary = train(tmp_path, [shown("Table", "/groups/vision/runs.csv", str(table))()])
    assert table.read_text() == f"{tmp_path / 'run'},{summary['test_accuracy']},{summary['seconds']}\n"
    assert "loggers:" not in capfd.readouterr().err
