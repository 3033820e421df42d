"""What ranks report and evaluate: figures, losses, rates, records, averages of the weights; and what follows."""

import json

import numpy as np
import pytest
from small_runs import dataset, digits

import mpidl
from mpidl.algorithms import Averaging, Downpour, Hogwild, Sandblaster, Sync
from mpidl.data import Arrays
from mpidl.errors import UsageError
from mpidl.metrics import METRICS
from mpidl.metrics.figures import Figures
from mpidl.nn import Dense, Network
from mpidl.nn.evaluation import evaluate_split
from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.storage.checkpoints import latest, read, read_best
from still import BATCH, WHOLE, Still
from still import DATA as STILL

pytestmark = pytest.mark.mpi(min_size=4)
NAMES = ("f1", "auc", "mean_absolute_error")


def classes(samples, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, samples)
    return random.normal(np.eye(3)[labels], 0.5).astype(np.float32), labels


DATA = Arrays(classes(240, 0), classes(61, 1), validation=classes(53, 2)).open()


def figures_of(network, split):
    """Evaluate all of a split at once."""
    figures = Figures([METRICS[name]() for name in NAMES], 3)
    return figures.values(evaluate_split(network, split, 0, split.samples, figures))


@pytest.mark.parametrize("algorithm", [Downpour(), Sync(), Hogwild(), Sandblaster()], ids=lambda each: each.name)
def test_the_figures_of_all_ranks_are_those_of_all_samples(comm, tmp_path, algorithm):
    network, run = Network([Dense(3)], (3,)), comm.bcast(tmp_path) / "run"
    rule = {} if algorithm.coordinated else {"rule": Sgd(0.1)}
    summary = mpidl.train(
        network, DATA, algorithm=algorithm, metrics=NAMES, epochs=4, batch=20, dir=run.parent, device="cpu", **rule
    )
    expected = {
        f"{name}_{figure}": value
        for name, split in (("test", DATA.test), ("validation", DATA.validation))
        for figure, value in figures_of(network, split).items()
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert expected["test_auc"] > 0.6
    if comm.rank == 0:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        evaluated = [record for record in records[:-1] if record["validation_loss"] is not None]
        assert evaluated
        assert all(record["validation_f1"] > 0 for record in evaluated)
        assert all(record["test_loss"] is None for record in evaluated)
        best = read_best(run)
        assert (best.step, best.epoch, best.value) == tuple(
            summary[name] for name in ("best_step", "best_epoch", "best_validation_loss")
        )
        assert best.value <= min(record["validation_loss"] for record in records if record["validation_loss"])
        found = mpidl.evaluate(run, network, DATA, step="best")
        assert found["step"] == best.step


@pytest.mark.parametrize("algorithm", [Downpour(), Sync()], ids=lambda each: each.name)
def test_patience_ends_the_run_of_all_ranks(comm, tmp_path, algorithm):
    summary = mpidl.train(
        Network([Dense(3)], (3,)), DATA, algorithm=algorithm, rule=Sgd(1e-30), patience=2, epochs=200, batch=20, keep=1,
        dir=comm.bcast(tmp_path), device="cpu",
    )  # fmt: skip
    assert summary["stopped"].startswith("the validation loss has not improved on ")
    assert 3 <= summary["epochs"] < 100
    assert summary["best_epoch"] < 3


def test_a_model_without_outputs_is_refused_on_all_ranks(comm, tmp_path, tally):
    model, split = tally()
    with pytest.raises(UsageError, match=r"run\.metrics: r2: evaluate\(batch\) of the model returns no outputs"):
        mpidl.train(model, dataset(split), metrics=["r2"], dir=comm.bcast(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("algorithm", [Downpour(), Sync()], ids=lambda each: each.name)
def test_it_is_that_of_the_whole_epoch_whenever_reports_fall(comm, tmp_path, algorithm):
    summary = mpidl.train(
        Still(), STILL, algorithm=algorithm, rule=mpidl.Sgd(1.0), epochs=3, batch=BATCH, portion=BATCH, report=1e-6,
        dir=comm.bcast(tmp_path), device="cpu",
    )  # fmt: skip
    assert summary["train_loss"] == pytest.approx(WHOLE, rel=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        (mpidl.Downpour(), {"servers": 2}),
        (mpidl.Sync(), {}),
        (mpidl.Sync(), {"partitions": 3}),
        (mpidl.Downpour(), {"partitions": 2}),
        (mpidl.algorithms.Hogwild(), {}),
        (mpidl.Sandblaster(), {}),
    ],
)
def test_records_and_values(comm, shared_path, algorithm, topology):
    network = mpidl.Network([mpidl.Dense(12, activation="relu"), mpidl.Dense(10)], (8, 8))
    first, taken = network.parameters.copy(), []

    def keep(record, values):
        taken.append((record, np.concatenate([each.ravel() for each in values.values()])))

    summary = mpidl.train(
        network, mpidl.Digits(), callbacks=[keep], algorithm=algorithm, epochs=3, report=0.05, dir=shared_path,
        name=f"taken-{algorithm.name}-{'-'.join(topology)}", device="cpu", **topology,
    )  # fmt: skip
    (taken,) = filter(None, comm.allgather(taken))
    losses = [record["test_loss"] for record, _ in taken if record["test_loss"] is not None]
    assert losses[-1] == summary["test_loss"]
    assert np.array_equal(taken[-1][1], network.parameters)
    assert not np.array_equal(taken[-1][1], first)
    assert all(np.isfinite(values).all() for _, values in taken)


@pytest.mark.mpi(min_size=3)
def test_one_rank_has_the_records(comm, shared_path):
    records = []
    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    mpidl.train(
        network, mpidl.Digits(), callbacks=[records.append], epochs=1, dir=shared_path, name="one", device="cpu"
    )
    assert sorted(map(bool, comm.allgather(records)))[-2:] == [False, True]


@pytest.mark.parametrize("transport", ["windows", "messages"])
@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        (mpidl.Downpour(), {"servers": 1}),
        (mpidl.Sync(), {}),
        (Averaging(tau=4), {}),
    ],
)
def test_all_evaluate_the_average(comm, shared_path, algorithm, topology, transport):
    network = mpidl.Network([mpidl.Dense(12, activation="relu"), mpidl.Dense(10)], (8, 8))
    name = f"average-{algorithm.name}-{transport}"
    keywords = {"algorithm": algorithm, "dir": shared_path, "name": name, "ema": 0.9, "device": "cpu", **topology}
    keywords |= {"transport": transport, "batch": 32}
    summary = mpidl.train(network, mpidl.Digits(), epochs=1, **keywords)
    summary = mpidl.train(network, mpidl.Digits(), epochs=3, resume=True, **keywords)
    saved, layout = latest(shared_path / name), network.layout
    averaged = saved.read("rule/ema", Range(0, layout.size), layout)
    assert np.array_equal(network.parameters, averaged)
    assert not np.array_equal(averaged, saved.read("parameters", Range(0, layout.size), layout))
    figures = mpidl.evaluate(shared_path / name, network, mpidl.Digits())
    assert figures["test_loss"] == pytest.approx(summary["test_loss"], rel=1e-5)
    assert np.array_equal(read(saved).parameters["0-dense/bias"], network.layout.views(averaged)["0-dense/bias"])


EPOCHS, FACTOR = 12, 0.5


EPOCHS, FACTOR = 12, 0.5


class Flat:
    """A model whose evaluations don't change; plain SGD with a rate of 1 subtracts the factor at each step."""

    def __init__(self):
        self.parameters = np.zeros(3)

    def loss_and_gradient(self, batch):
        return 1.0, np.ones(3)

    def evaluate(self, batch):
        return 5.0 * len(batch.inputs), 0


@pytest.mark.parametrize("transport", ["windows", "messages"])
@pytest.mark.parametrize("algorithm", [mpidl.Downpour(), mpidl.Sync()])
def test_rates_fall_on_a_plateau(comm, shared_path, algorithm, transport):
    model, inputs, name = Flat(), np.zeros((64, 1)), f"{algorithm.name}-{transport}"
    keywords = {"algorithm": algorithm, "rule": mpidl.Sgd(1.0), "batch": 4, "dir": shared_path, "name": name}
    keywords |= {"rate": {"schedule": "plateau", "factor": FACTOR, "patience": 2}, "transport": transport}
    keywords |= {"debug": {"gradient_seconds": 0.01}, "device": "cpu"}
    data = mpidl.Arrays((inputs, inputs), (inputs[:4], inputs[:4]))
    mpidl.train(model, data, epochs=EPOCHS, **keywords)
    pushes, events = int(mpidl.evaluate(shared_path / name, Flat(), data)["step"]), shared_path / name / "events.jsonl"
    moved = -model.parameters[0]
    reductions = [
        each["reductions"] for line in events.read_text().splitlines() if (each := json.loads(line)).get("reductions")
    ]
    assert reductions == [1, 2, 3]
    assert len(set(model.parameters.tolist())) == 1
    if isinstance(algorithm, mpidl.Downpour):
        assert pushes == 16 * EPOCHS
        # 4 epochs at 1, then 3 each at 0.5, 0.25 and 0.125; evaluations and orders take a while.
        assert 16 * 6.1 < moved < 16 * 9
    mpidl.train(model, data, epochs=EPOCHS + 1, resume=True, **keywords)
    assert 16 * FACTOR**4 * 0.05 < -model.parameters[0] - moved <= 16 * FACTOR**3 + 1e-9


@pytest.mark.parametrize(
    ("algorithm", "server", "worker"),
    [
        ({"name": "downpour", "rate": 0.0625}, 0.25, 0.0625),
        ({"name": "sync"}, 0.25, None),
        ({"name": "hogwild"}, 0.25, None),
        ({"name": "easgd", "rate": 0.5}, None, 0.5),
    ],
)
def test_rates_follow_their_schedule(comm, shared_path, algorithm, server, worker):
    config = digits(
        shared_path, run={"epochs": 8, "report": 1e-9}, data={"batch": 64}, algorithm=algorithm,
        rate={"schedule": "steps", "epochs": [4], "factor": 0.5}, debug={"gradient_seconds": 0.01},
        **({"server": {"rule": "sgd", "rate": 0.25}} if server else {}),
    )  # fmt: skip
    mpidl.train(config=config)
    found = [json.loads(line) for line in (shared_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for name, rate in (("server_rate", server), ("worker_rate", worker)):
        rates = [record[name] for record in found]
        if rate is None:
            assert {*rates} == {None}
        else:
            assert rates[-1] == rate / 2
            assert rate in rates
            assert rates[0] == rate
            assert {*rates} <= {rate, 0.75 * rate, rate / 2}  # one of two replicas is ahead
    assert found[-1]["gradient_norm"] > 0


def test_the_norm_of_a_cut_replica_is_that_of_the_whole_gradient(comm, shared_path):
    norms = []
    for partitions in (1, 2):
        topology = {"partitions": partitions, "servers": comm.size - 1 - partitions}
        more = {"run": {"steps": 1}, "data": {"batch": 1437}, "topology": topology}
        mpidl.train(config=digits(shared_path / str(partitions), 20, **more))
        records = (shared_path / str(partitions) / "run" / "metrics.jsonl").read_text().splitlines()
        norms.append(json.loads(records[-1])["gradient_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
