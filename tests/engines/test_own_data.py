"""Virtual clusters whose replicas have data of their own: every sample is counted by its owner."""

import numpy as np
import pytest

from mpidl.config import from_dict, source_of
from mpidl.data import Arrays, Private
from mpidl.data.labels import Deal
from mpidl.engines.virtual.times import Constant, Death, Exponential, Failures, Times
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.runs.one_process import OneProcess

SAMPLES, EPOCHS, REPLICAS = 60, 4, 3
#: The first replica is five times slower than the others.
UNEVEN = Times(Constant(0.1), slow={0: 5.0})


class Counter:
    """A model whose parameters count the samples: plain SGD with a rate of 1 adds 1 for each."""

    def __init__(self, samples=SAMPLES):
        self.parameters = np.zeros(samples)

    def loss_and_gradient(self, batch):
        return 0.0, -batch.inputs.sum(axis=0, dtype=float)


def arrays(samples=range(SAMPLES)):
    """Return rows of the unit matrix with these numbers, of three labels."""
    rows = np.array(samples)
    x, y = np.eye(SAMPLES, dtype=np.float32)[rows], rows % 3
    return Arrays((x, y), (x[:1], y[:1]), classes=3)


def train(tmp_path, data, times=UNEVEN, replicas=REPLICAS, rate=1.0, algorithm="downpour", **keys):
    """Return the summary, and how often each sample was trained with."""
    config = from_dict(
        {"run": {"name": "own", "dir": str(tmp_path), "epochs": EPOCHS}, "data": {"batch": 4, "portion": 8, **keys},
         "model": {"factory": "python:object"}, "algorithm": {"name": algorithm},
         **({} if algorithm == "sandblaster" else {"server": {"rule": "sgd", "rate": rate}})},
        data_source=source_of(data),
    )  # fmt: skip
    model = Counter()
    summary = OneProcess(Job.of(config, data.open(), model), replicas, times).run()
    return summary, np.rint(model.parameters).astype(int)


def check(trained, shares):
    """Each sample was used as often as the others of its owner, or once more, and owners were counted."""
    summary, found = trained
    assert summary["owner_samples"] == [found[share].sum() for share in shares]
    assert found.sum() == summary["samples"] == EPOCHS * SAMPLES
    for share in shares:
        assert np.ptp(found[share]) <= 1


def dealt(how):
    return Deal.parse(how).shares(np.arange(SAMPLES) % 3, REPLICAS, 0)


@pytest.mark.parametrize(("algorithm", "how"), [("downpour", "label:2"), ("dcasgd", "dirichlet:0.3")])
def test_fast_replicas_pass_more_often_through_their_own_samples(tmp_path, how, algorithm):
    trained, shares = train(tmp_path, arrays(), split=how, algorithm=algorithm), dealt(how)
    check(trained, shares)
    slow, *fast = trained[0]["owner_samples"]
    assert slow < min(fast) / 2


def test_replicas_that_step_together_take_equal_shares(tmp_path):
    trained = train(tmp_path, arrays(), split="label:1", algorithm="sync", rate=float(REPLICAS))
    check(trained, dealt("label:1"))
    assert trained[1].tolist() == [EPOCHS] * SAMPLES


@pytest.mark.parametrize("changes", [
    {"deaths": (Death(1, 0.55, 1.2), Death(0, 1.05))},
    {"failures": Failures(Exponential(5.0), every=0.3, restart=Constant(0.3))},
])  # fmt: skip
def test_what_a_death_takes_is_drawn_again(tmp_path, changes):
    times = Times(Constant(0.1), **changes)
    trained = train(tmp_path, arrays(), times, split="label:2")
    check(trained, dealt("label:2"))
    assert trained[0]["failures"] > 0


def test_each_of_several_sources_belongs_to_one_replica(tmp_path):
    own = [np.arange(0, 35), np.arange(35, 40), np.arange(40, 60)]
    data = Private([arrays(each) for each in own])
    trained = train(tmp_path, data, private=True)
    check(trained, own)
    assert trained[1][own[1]].min() > EPOCHS


def test_one_replica_alone_trains_as_with_data_that_belong_to_no_one(tmp_path):
    data = arrays()
    assert train(tmp_path, data, replicas=1, split="label:3")[1].tolist() == [EPOCHS] * SAMPLES


@pytest.mark.parametrize(("data", "keys", "message"), [
    (Private([arrays()] * 2), {"private": True}, r"^data.private: true, with data of 2 workers, but there are 3,"),
    (Private([arrays()] * 3), {}, "^data.private: false, but each data source belongs to one worker, expected true$"),
    (arrays(), {"private": True}, "^data.private: true, but the source python gives one dataset, expected a list of"),
    (Private([arrays()] * 3), {"split": "label:1"}, "^data.split: 'label:1', but each data source belongs to one w"),
    (arrays(), {"split": "label:30"}, "^data.split: 'label:30': 60 training samples, expected at least 90 for 3 rep"),
    (Arrays((np.eye(60), np.eye(60)), (np.eye(60), np.eye(60))), {"split": "label:1"},
     "^data.split: 'label:1', but the training data have no labels"),
    (arrays(), {"split": "label:1", "algorithm": "sandblaster"}, "^data.split: 'label:1', but sandblaster lets any"),
])  # fmt: skip
def test_what_does_not_fit_is_one_line(tmp_path, data, keys, message):
    with pytest.raises(UsageError, match=message):
        train(tmp_path, data, **keys)
    assert not list(tmp_path.iterdir())
