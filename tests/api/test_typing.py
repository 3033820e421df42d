"""What mypy sees of the package's exports."""

from pathlib import Path

import pytest
from mypy import api

import mpidl

RIGHT = """
import mpidl
from mpidl import nn

network = mpidl.Network([mpidl.nn.Conv2d(8, 3, activation="relu"), mpidl.nn.Flatten(), nn.Dense(10)], (8, 8, 1))
summary: dict[str, object] = mpidl.train(
    network,
    mpidl.Digits(),
    algorithm=mpidl.algorithms.Easgd(),
    rule=mpidl.Adam(0.001),
    rate=mpidl.rules.RateSchedule("cosine", warm_up=1.0),
    servers=2,
    augment=mpidl.data.Augmentation(translate=1),
    normalise={"mean": 0.5, "std": 0.5},
    device=mpidl.config.DeviceSection(kind="cpu"),
    debug=mpidl.config.DebugSection(slow_worker=0),
    epochs=3,
)
summary = mpidl.train(config="jobs/digits.toml", steps=10)
summary = mpidl.train(
    network, mpidl.Digits(), algorithm="diloco", rule={"rule": "nesterov", "rate": 0.5}, clip=1.0, l2=1e-4, relay=True,
    transport="mixed", shuffle="portion", data_keep="memory", rate={"schedule": "cosine"},
)
summary = mpidl.train(config=mpidl.config.load("jobs/digits.toml", ["run.steps=10"]))
version: str = mpidl.__version__


class Mean:
    def __init__(self) -> None:
        import numpy as np

        self.parameters = np.zeros(1)

    def loss_and_gradient(self, batch: mpidl.Batch) -> tuple[float, object]:
        return 0.0, self.parameters


def data(source: mpidl.data.Source) -> mpidl.Dataset:
    try:
        return source.open()
    except mpidl.UsageError as error:
        raise mpidl.MpidlError(str(error)) from None


mpidl.train(Mean(), data(mpidl.data.Idx("data/fashion-mnist")), algorithm=mpidl.algorithms.Sync(), resume=True)
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Return a function from a script to the errors that mypy finds in it, with --strict."""
    monkeypatch.setenv("MYPYPATH", str(Path(mpidl.__file__).parents[1]))
    monkeypatch.chdir(Path(__file__).parents[2])

    def run(text):
        script = tmp_path / "script.py"
        script.write_text(text)
        found, problem, _ = api.run(["--strict", "--no-error-summary", str(script)])
        assert not problem
        return [
            line.partition("error: ")[2] for line in found.splitlines() if "script.py" in line and "error: " in line
        ]

    return run


def test_a_script_that_uses_the_exports_as_meant(check):
    assert check(RIGHT) == []


def test_a_wrong_model_and_an_unknown_keyword(check):
    wrong, unknown = check("import mpidl; mpidl.train(3, serverz=2)\n")
    assert "serverz" in wrong + unknown
    assert {error.rpartition("[")[2] for error in (wrong, unknown)} == {"arg-type]", "call-arg]"}


@pytest.mark.parametrize(
    "line",
    [
        "mpidl.train(epochs='3')",
        "mpidl.train(data=3)",
        "mpidl.train(rate=mpidl.Sgd(), transport='mixed')",
        "mpidl.train(transport='tcp')",
        "mpidl.Downpour(n_psh=1)",
        "mpidl.Dense('10')",
        "mpidl.Adagrade()",
        "mpidl.config.load(3)",
    ],
)
def test_each_of_these_is_an_error(check, line):
    assert len(check(f"import mpidl\n{line}\n")) == 1
