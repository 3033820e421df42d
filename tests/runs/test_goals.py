"""What evaluations decide: figures of splits and metrics, the best checkpoint, targets and patience, in one process."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics as oracle

import mpidl
from mpidl.config import from_dict
from mpidl.data import Arrays
from mpidl.errors import UsageError
from mpidl.nn import Dense, MeanSquaredError, Network, OneVsAllLogistic
from mpidl.runs.simulate import simulate
from mpidl.storage.checkpoints import read_best, steps
from mpidl.storage.position import Best

CPU = {"device": "cpu"}
SAMPLE = [(np.zeros(1), np.zeros(1))]


class Scripted:
    """A model whose loss is given for each evaluation in turn, and which counts what it is trained on."""

    def __init__(self, losses):
        self.parameters = np.zeros(2)
        self._losses, self._gradients = iter(losses), 0

    def loss_and_gradient(self, batch):
        self._gradients += 1
        return 1.0, np.ones(2)

    def evaluate(self, batch):
        rehearsed = self._gradients < 2
        return (9.0 if rehearsed else next(self._losses)) * len(batch.inputs), math.nan


@pytest.mark.parametrize("ends", [{"target": "loss < 1"}, {"patience": 2}, {"metrics": ["f1"]}])
def test_a_goal_needs_data_to_evaluate(tmp_path, ends):
    with pytest.raises(UsageError, match=f"^run.{next(iter(ends))}: .*, but the data have neither validation nor test"):
        mpidl.train(Scripted([]), mpidl.Indexed(3 * SAMPLE), dir=tmp_path, **ends)


def test_a_run_without_data_to_evaluate(tmp_path):
    summary = mpidl.train(Scripted([]), mpidl.Indexed(3 * SAMPLE), epochs=2, batch=1, dir=tmp_path, **CPU)
    assert (summary["samples"], summary["test_loss"], summary["test_accuracy"]) == (6, None, None)
    with pytest.raises(UsageError, match="no validation or test data"):
        mpidl.evaluate(tmp_path / "run", Scripted([]), mpidl.Indexed(3 * SAMPLE))
    data = mpidl.Indexed(3 * SAMPLE, validation=4 * SAMPLE)
    summary = mpidl.train(Scripted([5, 4]), data, epochs=2, batch=1, dir=tmp_path, name="validated", **CPU)
    assert (summary["validation_loss"], summary["test_loss"], summary["best_epoch"]) == (4, None, 2)


def counting(validation=True):
    arrays = np.zeros((40, 1)), np.zeros((40, 1))
    return Arrays(arrays, arrays, validation=arrays if validation else None).open()


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def events(run, kind):
    found = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event for event in found if event["event"] == kind]


def test_validation_data_are_evaluated_after_epochs_and_test_data_at_the_end(tmp_path):
    summary = mpidl.train(
        config={"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}},
        validation=0.2, metrics=["f1", "accuracy"], epochs=3, dir=tmp_path, **CPU,
    )  # fmt: skip
    assert summary["samples"] == 3 * 1150
    *before, last = records(tmp_path / "run")
    evaluated = [record for record in before if record["validation_loss"] is not None]
    assert {record["epoch"] for record in evaluated} >= {1.0, 2.0}
    for record in evaluated:
        assert 0 < record["validation_f1"] < 1
        assert 0 < record["validation_accuracy"] < 1
        assert record["test_loss"] is record["test_accuracy"] is record["test_f1"] is None
    names = [f"{split}_{name}" for split in ("validation", "test") for name in ("loss", "accuracy", "f1")]
    assert all(summary[name] == last[name] > 0 for name in names)
    assert summary["validation_loss"] != summary["test_loss"]
    # The last one is the best, and exactly what was evaluated.
    step = 3 * 9
    assert read_best(tmp_path / "run") == Best(step, "validation_loss", summary["validation_loss"], 3.0)
    assert (summary["best_step"], summary["best_epoch"]) == (step, 3.0)
    assert summary["best_validation_loss"] == summary["validation_loss"]
    for which in ("best", step):
        found = mpidl.evaluate(tmp_path / "run", step=which)
        assert found["step"] == step
        assert [found[name] for name in names] == pytest.approx([summary[name] for name in names])
    initial = mpidl.evaluate(tmp_path / "run", step=0)
    assert initial["validation_loss"] > found["validation_loss"]


def test_without_validation_data_nothing_is_named_best(tmp_path):
    summary = mpidl.train(Scripted([3.0] * 9), counting(validation=False), epochs=2, dir=tmp_path)
    assert summary["best_step"] is summary["stopped"] is None
    assert not any(name.startswith("validation") for name in summary)
    assert read_best(tmp_path / "run") is None
    with pytest.raises(UsageError, match="run: no best checkpoint"):
        mpidl.evaluate(tmp_path / "run", Scripted([]), counting(), step="best")


def test_regression_with_several_outputs_up_to_a_target(tmp_path):
    random = np.random.default_rng(0)
    inputs, weights = random.normal(size=(301, 4)), random.normal(size=(4, 3))
    targets = inputs @ weights + 1 + random.normal(0, 0.1, (301, 3))
    data = Arrays((inputs[:200], targets[:200]), (inputs[200:], targets[200:]))
    network = Network([Dense(3)], (4,), loss=MeanSquaredError())
    names = ["r2", "mean_absolute_error", "mean_squared_error"]
    target = "validation_r2 >= 0.9"
    summary = mpidl.train(
        network, data, validation=0.1, metrics=names, target=target, rule=mpidl.Sgd(0.1), batch=16, epochs=50,
        dir=tmp_path, **CPU,
    )  # fmt: skip
    assert summary["epochs"] < 50
    assert summary["stopped"] == f"the target {target} is reached"
    assert [event["why"] for event in events(tmp_path / "run", "stopped")] == [summary["stopped"]]
    assert summary["seconds_to_target"] > 0
    assert summary["test_accuracy"] is None
    assert summary["test_loss"] == pytest.approx(summary["test_mean_squared_error"], rel=1e-5)
    outputs = network.predict(inputs[200:].astype(np.float32))
    assert summary["test_r2"] == pytest.approx(oracle.r2_score(targets[200:], outputs), rel=1e-4)
    expected = oracle.mean_absolute_error(targets[200:], outputs)
    assert summary["test_mean_absolute_error"] == pytest.approx(expected, rel=1e-4)
    assert summary["best_validation_r2"] >= 0.9


def test_several_labels(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(601, 3)).astype(np.float32)
    labels = (inputs + random.normal(0, 0.5, inputs.shape) > 0).astype(np.float32)
    data = Arrays((inputs[:300], labels[:300]), (inputs[300:], labels[300:]))
    network = Network([Dense(3)], (3,), loss=OneVsAllLogistic())
    summary = mpidl.train(network, data, metrics=["f1", "auc"], rule=mpidl.Sgd(1.0), dir=tmp_path, epochs=3, **CPU)
    outputs = network.predict(inputs[300:])
    expected = oracle.f1_score(labels[300:], outputs > 0, average="macro")
    assert summary["test_f1"] == pytest.approx(expected)
    assert summary["test_auc"] == pytest.approx(oracle.roc_auc_score(labels[300:], outputs), abs=0.005)
    assert summary["test_accuracy"] == pytest.approx(oracle.accuracy_score(labels[300:], outputs > 0))


def test_patience_ends_a_run_and_its_best_checkpoint_survives(tmp_path):
    # Epoch 2 is the best; the final evaluation is of validation and test data.
    model = Scripted([3.0, 2.0, 2.5, 2.0, 2.5, 2.5, 2.5, 2.5])
    summary = mpidl.train(model, counting(), patience=3, epochs=50, batch=10, keep=1, dir=tmp_path)
    run = tmp_path / "run"
    assert summary["stopped"] == "the validation loss has not improved on 2 for 3 epochs"
    assert 5 <= summary["epochs"] < 6
    best = read_best(run)
    assert (best.figure, best.value, best.epoch) == ("validation_loss", 2.0, 2.0)
    # It is saved between the first two batches of the next epoch.
    assert best.step == 9
    last = round(4 * summary["epochs"])
    assert steps(run / "checkpoints") == [0, 9, last]
    found = mpidl.evaluate(run, Scripted([7.0, 7.0]), counting(), step="best")
    assert found["step"] == 9


def test_a_resumed_run_knows_its_best_and_its_validation_samples(tmp_path):
    def train(model, **options):
        return mpidl.train(model, counting(), patience=2, batch=10, dir=tmp_path, keep=1, **options)

    first = train(Scripted([2.0, 3.0, 3.0]), steps=7)
    assert (first["best_validation_loss"], first["best_step"]) == (2.0, 5)
    second = train(Scripted([3.0, 3.0, 3.0, 3.0]), steps=90, resume=True)
    assert second["stopped"] == "the validation loss has not improved on 2 for 2 epochs"
    assert (second["best_step"], second["best_epoch"]) == (5, 1.0)
    assert second["epochs"] < 4


def test_another_share_than_that_of_the_checkpoint(tmp_path):
    data = counting(validation=False)
    mpidl.train(Scripted([2.0] * 9), data, validation=0.5, batch=10, steps=3, dir=tmp_path)
    config = {"run": {"dir": str(tmp_path), "steps": 9}, "data": {"batch": 10}}
    for share in (0.25, None):
        with pytest.raises(UsageError, match=r"data\.validation: .*, but .* was saved with 0\.5"):
            mpidl.train(Scripted([2.0] * 9), data, config=config, validation=share, resume=True)


def absolute(outputs, targets):
    return np.abs(outputs - targets).sum(), outputs.size


def broken(outputs, targets):
    return outputs.nothing


def test_a_function_of_ones_own_is_a_metric(tmp_path):
    data = Arrays((np.ones((40, 2)), np.ones((40, 2))), (np.ones((9, 2)), np.ones((9, 2))))
    network = Network([Dense(2)], (2,), loss=MeanSquaredError())
    names = [f"{__name__}:absolute", "mean_absolute_error"]
    summary = mpidl.train(network, data, metrics=names, target="test_absolute < 0", epochs=2, dir=tmp_path, **CPU)
    assert summary["test_absolute"] == pytest.approx(summary["test_mean_absolute_error"])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"metrics": ["r2"]}, "run.metrics: r2: evaluate.batch. of the model returns no outputs"),
        ({"metrics": [f"{__name__}:nothing"]}, "run.metrics[0]: .*: found nothing of that name"),
        ({"target": "test_loss < 1"}, "run.target: test_loss, but evaluations before the end are on the validation"),
        ({"validation": 0.1}, "data.validation: 0.1, but the data have a validation split of their own"),
    ],
)
def test_what_can_not_be_done_is_said_before_the_run_begins(tmp_path, options, line):
    with pytest.raises(UsageError, match=line.replace("[0]", r"\[0\]")):
        mpidl.train(Scripted([2.0] * 9), counting(), dir=tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_metrics_that_go_wrong_are_told_before_the_run_begins(tmp_path):
    network, data = Network([Dense(1)], (1,), loss=MeanSquaredError()), counting()
    with pytest.raises(UsageError, match=r"run\.metrics: .*:broken raised AttributeError"):
        mpidl.train(network, data, metrics=[f"{__name__}:broken"], dir=tmp_path, **CPU)
    with pytest.raises(
        UsageError, match=r"run\.target: validation_loss, but there are no validation data, expected test_loss, or"
    ):
        mpidl.train(network, counting(validation=False), target="validation_loss < 1", dir=tmp_path, **CPU)


def test_a_virtual_cluster_ends_for_want_of_patience(tmp_path):
    config = from_dict(
        {
            "run": {"epochs": 40, "dir": str(tmp_path), "patience": 2, "metrics": ["top5_accuracy"]},
            "data": {"source": "digits", "validation": 0.2},
            "model": {"layer": [{"type": "dense", "units": 10}]},
            "server": {"rule": "sgd", "rate": 1e-12},
            "virtual": {"compute": 1.0},
            "device": {"kind": "cpu"},
        }
    )
    summary = simulate(replace(config), 3)
    # Rounding leaves the parameters as they are.
    assert summary["stopped"].startswith("the validation loss has not improved on ")
    assert 3 <= summary["epochs"] < 4.5
    assert summary["best_epoch"] == 1
    assert summary["validation_top5_accuracy"] > 0


def test_a_run_that_patience_ended_goes_on_with_more_of_it(tmp_path):
    def train(losses, **options):
        return mpidl.train(Scripted(losses), counting(), epochs=5, batch=10, dir=tmp_path, **options)

    assert train([2.0] * 9, patience=1)["epochs"] < 3
    again = train([], patience=1, resume=True)
    assert again["stopped"] == "the validation loss has not improved on 2 for 1 epoch"
    assert train([2.0] * 9, patience=9, resume=True)["epochs"] == 5
