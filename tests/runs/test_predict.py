"""What `mpidl predict` writes, in one process; tests/ranks has the same on several."""

import h5py
import numpy as np
import pytest

import mpidl
from full_disk import full_disk
from mpidl.errors import UsageError
from mpidl.nn.evaluation import BATCH
from mpidl.runs.evaluate import predict

LAYERS = [{"type": "dense", "units": 7, "activation": "tanh"}, {"type": "dense", "units": 10}]
NORMALISE = {"mean": 0.3, "std": 0.7}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the directory of a short run with inputs of bytes, which are scaled and normalised."""
    config = {"data": {"source": "digits", "normalise": NORMALISE}, "model": {"layer": LAYERS}}
    summary = mpidl.train(config=config, dir=tmp_path_factory.mktemp("predict"), name="run", steps=5, device="cpu")
    return tmp_path_factory.getbasetemp() / summary["run_dir"]


def outputs(path):
    """Return what a file of outputs has."""
    with h5py.File(path) as file:
        assert list(file) == ["outputs"]
        return file["outputs"][...]


def expected(network, inputs):
    """Return a network's outputs, batch by batch."""
    batches = [inputs[start : start + BATCH] for start in range(0, len(inputs), BATCH)]
    return np.concatenate([network.predict(batch) for batch in batches])


def test_a_split_of_the_runs_own_data(run, tmp_path):
    test = mpidl.Digits().open().test
    inputs = (test.gather(np.arange(test.samples)).inputs - np.float32(0.3)) * np.float32(1 / 0.7)
    result = predict(run, "test", tmp_path / "out.h5")
    assert result == {
        "run_dir": str(run), "step": 5, "data": "test", "file": str(tmp_path / "out.h5"), "samples": test.samples,
        "shape": (10,),
    }  # fmt: skip
    found = outputs(tmp_path / "out.h5")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected(mpidl.load(run), inputs))
    labels = test.gather(np.arange(test.samples)).targets
    assert np.mean(found.argmax(axis=1) == labels) == mpidl.evaluate(run)["test_accuracy"]


@pytest.mark.parametrize("samples", [1, BATCH, 2 * BATCH + 3])
def test_a_file_of_bytes(run, tmp_path, samples):
    values = np.random.default_rng(3).integers(0, 256, (samples, 8, 8), np.uint8)
    np.save(tmp_path / "data.npy", values)
    predict(run, str(tmp_path / "data.npy"), tmp_path / "out.h5", step=0)
    scaled = values.astype(np.float32) * np.float32(1 / 255)
    inputs = (scaled - np.float32(0.3)) * np.float32(1 / 0.7)
    np.testing.assert_array_equal(outputs(tmp_path / "out.h5"), expected(mpidl.load(run, 0), inputs))


@pytest.mark.parametrize("size", [0, 1 << 10, 1 << 14, 1 << 17])
def test_a_full_disk(run, tmp_path, size, capfd):
    np.save(tmp_path / "data.npy", np.zeros((1 << 12, 8, 8), np.uint8))
    with full_disk(size), pytest.raises(UsageError) as error:
        predict(run, str(tmp_path / "data.npy"), tmp_path / "out.h5")
    assert str(error.value) == f"{tmp_path / 'out.h5'}: can't be written (File too large)"
    assert [path.name for path in tmp_path.iterdir()] == ["data.npy"]
    assert capfd.readouterr().err == ""


def test_ids_stay_ids(tmp_path):
    ids = np.arange(24, dtype=np.uint8).reshape(8, 3)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for split in ("train", "test"):
            file[f"{split}/x"], file[f"{split}/y"] = ids, np.arange(8) % 2
    layers = [{"type": "embedding", "vocabulary": 24, "units": 3}, {"type": "dense", "units": 2}]
    config = {"data": {"source": "hdf5", "path": str(tmp_path / "data.h5")}, "model": {"layer": layers}}
    mpidl.train(config=config, dir=tmp_path, steps=1, batch=4, device="cpu")
    np.savez(tmp_path / "ids.npz", ids[:5])
    predict(tmp_path / "run", str(tmp_path / "ids.npz"), tmp_path / "out.h5")
    network = mpidl.load(tmp_path / "run")
    np.testing.assert_array_equal(outputs(tmp_path / "out.h5"), network.predict(ids[:5]))


FACTORY = """
import numpy as np

from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters import Layout

class Line(CompleteModel):
    def __init__(self, inputs):
        self.parameters = np.ones(inputs)
        self.layout, self.dtype = Layout([("weight", (inputs,))]), self.parameters.dtype

    def loss_and_gradient(self, batch):
        error = batch.inputs @ self.parameters - batch.targets[:, 0]
        return float(np.mean(error**2) / 2), batch.inputs.T @ error / len(error)

    def evaluate(self, batch):
        return Evaluation(*((0.0, float("nan")) if batch.targets is not None else self.of_inputs(batch.inputs)))

def telling(dataset, seed):
    model = Line(dataset.input_shape[0])
    model.of_inputs = lambda inputs: (float("nan"), float("nan"), inputs @ model.parameters)
    return model

def silent(dataset, seed):
    model = Line(dataset.input_shape[0])
    model.of_inputs = lambda inputs: (0.0, 0.0, None)
    return model

def changing(dataset, seed):
    model = Line(dataset.input_shape[0])
    model.of_inputs = lambda inputs: (0.0, 0.0, np.ones((len(inputs), len(inputs))))
    return model

def short(dataset, seed):
    model = Line(dataset.input_shape[0])
    model.of_inputs = lambda inputs: (0.0, 0.0, inputs[1:])
    return model
"""


def test_models_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "line_factories.py").write_text(FACTORY)
    random = np.random.default_rng(3)
    inputs, targets = random.normal(size=(300, 3)).astype(np.float32), random.normal(size=(300, 1)).astype(np.float32)
    with h5py.File("data.h5", "w") as file:
        for split in ("train", "test"):
            file[f"{split}/x"], file[f"{split}/y"] = inputs, targets
    lines = {
        "silent": "model: evaluate(batch) returns no outputs, expected (loss, correct, outputs)",
        "changing": "model: outputs of shape (44,) for a sample, those before are of (256,), expected one shape",
        "short": "model: outputs of shape (255, 3) for 256 samples, expected one for each",
    }
    for name in ("telling", *lines):
        config = {
            "data": {"source": "hdf5", "path": "data.h5"},
            "model": {"factory": f"line_factories:{name}"},
            "server": {"rule": "sgd", "rate": 0.01},
        }
        mpidl.train(config=config, name=name, steps=2, batch=8)
    parameters = mpidl.load("runs/telling").parameters["weight"]
    predict(tmp_path / "runs" / "telling", "data.h5", tmp_path / "out.h5")
    np.testing.assert_allclose(outputs("out.h5"), inputs @ parameters, rtol=1e-6)
    for name, line in lines.items():
        with pytest.raises(mpidl.UsageError) as caught:
            predict(tmp_path / "runs" / name, "data.h5", tmp_path / "none.h5")
        assert str(caught.value) == line
    assert not list(tmp_path.glob("none*"))


def test_what_does_not_fit_is_one_line(run, tmp_path):
    np.save(tmp_path / "other.npy", np.ones((3, 8, 9)))
    np.save(tmp_path / "late.npy", np.append(np.ones((BATCH, 8, 8)), np.full((1, 8, 8), np.nan), axis=0))
    (tmp_path / "there.h5").touch()
    for data, file, line in (
        ("other.npy", "out.h5", r"other\.npy: samples of shape \(8, 9\), expected \(8, 8\) as in the training$"),
        ("absent.npy", "out.h5", r"absent\.npy: no such file$"),
        ("late.npy", "out.h5", rf"late\.npy: NaN or infinity in sample {BATCH}, expected finite numbers$"),
        ("late.npy", "there.h5", r"there\.h5: exists already, expected --force to replace it$"),
        ("late.npy", "absent/out.h5", r"absent/out\.h5: can't be written \(no such directory\)$"),
    ):
        with pytest.raises(mpidl.UsageError, match=line):
            predict(run, str(tmp_path / data), tmp_path / file)
    with pytest.raises(mpidl.UsageError, match=r"^validation: the data of .* have no such split$"):
        predict(run, "validation", tmp_path / "out.h5")
    with pytest.raises(mpidl.UsageError, match=r"no checkpoint to read in"):
        predict(tmp_path / "absent", "test", tmp_path / "out.h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["late.npy", "other.npy", "there.h5"]
