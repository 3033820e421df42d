"""What a model has beside its parameters: checkpoints hold it, and resuming and evaluating give it back."""

import h5py
import msgspec
import numpy as np
import pytest

import mpidl
from beside import Beside
from mpidl.storage.checkpoint import Checkpoint


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(96, 2)).astype(np.float32)
    return mpidl.Arrays((x, np.arange(96) % 3), (x[:16], np.arange(16) % 3)).open()


@pytest.fixture
def train(tmp_path, data):
    def run(name, steps, model=None, **options):
        model = Beside() if model is None else model
        mpidl.train(
            model,
            data,
            steps=steps,
            batch=8,
            rule=mpidl.Sgd(0.1),
            deterministic=True,
            dir=tmp_path,
            name=name,
            **options,
        )
        return model, Checkpoint(tmp_path / name / "checkpoints" / str(steps))

    return run


def test_checkpoints_have_constants_buffers_and_aliases(train):
    model, saved = train("run", 7)
    assert model.seen == 7
    with h5py.File(saved.path / "index.h5") as index:
        np.testing.assert_array_equal(index["constants/block/scale"], model.scale)
        assert msgspec.json.decode(index.attrs["aliases"]) == {"tied": "w"}
    with h5py.File(saved.path / "replica-0.h5") as replica:
        assert replica["buffers/block/seen"][()] == 7
    assert saved.aliases == {"tied": "w"}
    assert saved.kept_by(0, "buffers") == {"block/seen": 7}
    assert saved.kept_by(5, "buffers") == saved.kept_by(0, "buffers"), (
        "a replica that was not there takes the first one's"
    )
    assert saved.replica_vectors(0) == {}


def test_a_resumed_run_goes_on_with_them(train):
    through, _ = train("through", 20)
    train("struck", 9)
    # Its own constants are others: those of the checkpoint count.
    resumed, saved = train("struck", 20, Beside(scale=(7.0, 7.0)), resume=True)
    assert resumed.seen == 20
    np.testing.assert_array_equal(resumed.parameters, through.parameters)
    np.testing.assert_array_equal(saved.arrays("constants")["block/scale"], through.scale)


def test_evaluating_gives_them_to_the_model(train, data, tmp_path):
    trained, _ = train("run", 8)
    model = Beside(scale=(0.0, 0.0))
    found = mpidl.evaluate(tmp_path / "run", model, data)
    assert found["test_loss"] == trained.evaluate(data.test.gather(np.arange(16)))[0] / 16
    assert model.seen == 8
    np.testing.assert_array_equal(model.scale, trained.scale)


def test_other_things_beside_the_parameters_are_another_model(train):
    train("run", 3)
    for model, line in (
        (
            Beside(scale=(1.0, 2.0, 3.0)),
            r"constants block/scale: found float64 of shape \(2,\), the model has float64 o",
        ),
        (Beside(seen=np.zeros(2, int)), r"buffers block/seen: found int64 of shape \(\), the model has int64 of shape"),
        (Beside(aliases={}), r"other name tied: found w, the model has none$"),
    ):
        with pytest.raises(mpidl.UsageError, match=line):
            train("run", 9, model, resume=True)


class Curriculum:
    """A model of a user's own whose state decides what it computes."""

    def __init__(self):
        self.parameters = np.array([0.5, -0.5])
        self.stage, self.seen = 0, np.zeros(2)

    def _error(self, batch):
        return batch.inputs @ self.parameters - batch.targets + self.seen.sum() * 0.01

    def evaluate(self, batch):
        return float(np.sum(self._error(batch) ** 2)), float("nan")

    def loss_and_gradient(self, batch):
        self.stage += 1
        self.seen = self.seen + batch.inputs.mean(0)
        error = self._error(batch)
        return float(np.mean(error**2)), batch.inputs.T.astype(float) @ error / (self.stage * len(error))

    def state(self):
        return {"stage": self.stage, "seen": self.seen}

    def load_state(self, state):
        self.stage, self.seen = int(state["stage"]), state["seen"]


class Torchlike(Curriculum):
    def state_dict(self):
        return super().state()

    def load_state_dict(self, state):
        super().load_state(state)

    state = load_state = None


@pytest.mark.parametrize("kind", [Curriculum, Torchlike])
def test_a_users_own_state_is_saved_and_resumed_but_not_exported(train, tmp_path, kind):
    through, saved = train("through", 20, kind())
    assert (through.stage, int(saved.kept_by(0, "state")["stage"])) == (20, 20)
    assert mpidl.load(tmp_path / "through").tensors.keys() == {"parameters"}
    train("struck", 9, kind())
    resumed, _ = train("struck", 20, kind(), resume=True)
    np.testing.assert_array_equal(resumed.parameters, through.parameters)
    np.testing.assert_array_equal(resumed.seen, through.seen)


@pytest.mark.parametrize("method", ["state", "load_state"])
def test_a_state_that_fails_is_one_line(train, method):
    class Failing(Curriculum):
        pass

    def fail(self, *arguments):
        raise ValueError("lost")

    setattr(Failing, method, fail)
    with pytest.raises(mpidl.MpidlError, match=rf"^model: Failing.{method} raised ValueError: lost"):
        train("run", 3, Failing())
