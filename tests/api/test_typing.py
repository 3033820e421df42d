"""What mypy sees of the package's exports."""

import re
from pathlib import Path

from mypy import api

ROOT = Path(__file__).parents[2]
RIGHT = """
from collections.abc import Mapping
from typing import Any

import mpidl
from mpidl import nn

network = mpidl.Network([mpidl.nn.Conv2d(8, 3, activation="relu"), mpidl.nn.Flatten(), nn.Dense(10)], (8, 8, 1))
summary: mpidl.Summary = mpidl.train(
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
seconds: float = summary["seconds"] + summary["shares"].get("waiting", 0.0) + summary["staleness"]["mean"]
accuracy: float | None = summary["test_accuracy"] or summary.get("validation_f1")
own: Mapping[str, Any] = summary
rewards: list[float] = [own["test_reward"], mpidl.evaluate(summary["run_dir"])["epoch"]]


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
#: Lines with the codes of the errors in them.
WRONG = [
    ("mpidl.train(3, serverz=2)", {"arg-type", "call-arg"}),
    ("mpidl.train(epochs='3')", {"arg-type"}),
    ("mpidl.train(data=3)", {"arg-type"}),
    ("mpidl.train(rate=mpidl.Sgd(), transport='mixed')", {"arg-type"}),
    ("mpidl.train(transport='tcp')", {"arg-type"}),
    ("mpidl.Downpour(n_psh=1)", {"call-arg"}),
    ("mpidl.Dense('10')", {"arg-type"}),
    ("mpidl.Adagrade()", {"attr-defined"}),
    ("mpidl.config.load(3)", {"arg-type"}),
    ("mpidl.train()['test_acuracy']", {"typeddict-item"}),
    ("mpidl.train()['staleness']['median']", {"typeddict-item"}),
    ("mpidl.evaluate('runs/digits')['steps']", {"typeddict-item"}),
    ("'one' + mpidl.train()['seconds']", {"operator"}),
]


def test_scripts_that_use_the_exports_as_meant_and_not(tmp_path, monkeypatch):
    """In one call of mypy, which takes its time."""
    monkeypatch.setenv("MYPYPATH", str(ROOT / "src"))
    monkeypatch.chdir(ROOT)
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(RIGHT)
    wrong.write_text("\n".join(["import mpidl", *(line for line, _ in WRONG)]))
    found, problem, _ = api.run(["--strict", "--no-error-summary", str(right), str(wrong)])
    assert not problem
    errors = re.findall(r"^.*(right|wrong)\.py:(\d+): error: .*\[([\w-]+)\]$", found, re.MULTILINE)
    expected = {("wrong", str(number), code) for number, (_, codes) in enumerate(WRONG, 2) for code in codes}
    assert sorted(errors) == sorted(expected), found
