"""What `mpidl export` writes, and what `mpidl.load` returns: the numbers that the run has ended with."""

import os
import re
import stat

import numpy as np
import pytest

import mpidl
from mpidl.runs.load import FORMATS, export
from mpidl.storage.checkpoints import steps
from tensor_files import KINDS

LAYERS = [
    {"type": "conv2d", "channels": 3, "size": 3, "activation": "relu"},
    {"type": "batch_normalisation"},
    {"type": "dense", "units": 10},
]


@pytest.fixture(scope="module", params=["float32", "float64"])
def trained(request, tmp_path_factory):
    """Return the directory of a short run, and its parameters by name."""
    directory = tmp_path_factory.mktemp("export")
    config = {"data": {"source": "digits"}, "model": {"layer": LAYERS, "dtype": request.param}}
    summary = mpidl.train(config=config, dir=directory, name="run", steps=5, seed=3, device="cpu")
    network = mpidl.load(summary["run_dir"])
    assert network.dtype == request.param
    return directory / "run", network


def of_file(kind, path):
    """Return the tensors of a file with the field's own means."""
    if kind == "npz":
        return dict(np.load(path))
    if kind == "safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    torch = pytest.importorskip("torch")

    return {name: tensor.numpy() for name, tensor in torch.load(path, weights_only=True).items()}


def test_loading_gives_the_network_that_was_evaluated(trained):
    run, network = trained
    data = mpidl.Digits().open()
    batch = data.test.gather(np.arange(data.test.samples))
    loss, correct = network.evaluate(batch)[:2]
    summary = mpidl.evaluate(run)
    assert loss / data.test.samples == pytest.approx(summary["test_loss"], rel=1e-6)
    assert correct / data.test.samples == summary["test_accuracy"]


def test_loading_a_step(trained):
    run, network = trained
    initial = mpidl.Network(network.layers, network.input_shape, dtype=network.dtype.name, seed=3)
    assert steps(run / "checkpoints") == [0, 5]
    np.testing.assert_array_equal(mpidl.load(run, 0).parameters, initial.parameters)
    np.testing.assert_array_equal(mpidl.load(str(run), 5).parameters, network.parameters)
    with pytest.raises(mpidl.UsageError, match=r"no checkpoint of step 3, there are those of 0, 5$"):
        mpidl.load(run, 3)
    with pytest.raises(mpidl.UsageError, match=r"config\.toml: a file, expected the directory of a run"):
        mpidl.load(run / "config.toml")


@pytest.mark.parametrize("kind", KINDS)
def test_files_have_the_trained_tensors(trained, kind, tmp_path):
    run, network = trained
    result = export(run, kind, file=tmp_path / "out")
    assert result == {
        "run_dir": str(run), "step": 5, "format": kind, "file": str(tmp_path / "out"), "tensors": 8,
        "bytes": (tmp_path / "out").stat().st_size,
    }  # fmt: skip
    found, expected = of_file(kind, tmp_path / "out"), network.layout.views(network.parameters)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == network.dtype
        np.testing.assert_array_equal(found[name], array)


def test_onnx_computes_the_same(trained, tmp_path):
    from onnx.reference import ReferenceEvaluator

    run, network = trained
    export(run, "onnx", file=tmp_path / "model.onnx")
    inputs = mpidl.Digits().open().test.gather(np.arange(7)).inputs.astype(network.dtype)
    (outputs,) = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"inputs": inputs})
    np.testing.assert_allclose(outputs, network.predict(inputs), atol=2e-6)


@pytest.mark.parametrize("kind", [*KINDS, "onnx"])
def test_a_file_is_replaced_by_force_only(trained, kind, tmp_path):
    run, _ = trained
    path = tmp_path / f"model{FORMATS[kind]}"
    path.write_text("mine")
    with pytest.raises(mpidl.UsageError, match=r"exists already, expected --force to replace it$"):
        export(run, kind, file=path)
    assert path.read_text() == "mine"
    export(run, kind, file=path, force=True)
    assert path.stat().st_size > 1000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", FORMATS)
def test_who_may_read_the_file_follows_the_umask(trained, kind, tmp_path):
    pytest.importorskip({"torch": "torch", "onnx": "onnx"}.get(kind, "numpy"))
    before = os.umask(0o027)
    try:
        export(trained[0], kind, file=tmp_path / "model")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o640


def test_the_file_lies_in_the_run_if_none_is_named(trained):
    run, _ = trained
    assert export(run, "npz", 0, force=True)["file"] == str(run / "model.npz")
    with pytest.raises(mpidl.UsageError, match=re.escape("--to: unknown format 'np', did you mean 'npz'?")):
        export(run, "np")
    with pytest.raises(mpidl.UsageError, match=re.escape("absent/x: can't be written (no such directory)")):
        export(run, "npz", file=run / "absent" / "x")


def test_a_model_of_ones_own(least_squares, tmp_path):
    model, split = least_squares()
    data = mpidl.Dataset("own", (13,), None, split, split)
    summary = mpidl.train(model, data, dir=tmp_path, steps=3, batch=8)
    trained = mpidl.load(summary["run_dir"])
    assert isinstance(trained, mpidl.Trained)
    assert trained.tensors.keys() == {"parameters"}
    np.testing.assert_array_equal(trained.parameters["parameters"], model.parameters)
    export(tmp_path / "run", "npz", file=tmp_path / "out.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["parameters"], model.parameters)
    with pytest.raises(mpidl.UsageError, match="is of a model of your own, expected a network of"):
        export(tmp_path / "run", "onnx", file=tmp_path / "out.onnx")


def test_a_package_that_is_missing_is_one_line(trained, tmp_path, monkeypatch):
    import sys

    run, _ = trained
    for kind, module, extra in (
        ("safetensors", "safetensors", "export"),
        ("torch", "torch", "torch"),
        ("onnx", "onnx", "export"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
            monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(mpidl.UsageError) as caught:
            export(run, kind, file=tmp_path / "out")
        assert str(caught.value) == f"{module} is not installed, expected `pip install 'mpidl[{extra}]'`"
    assert list(tmp_path.iterdir()) == []
