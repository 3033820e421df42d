"""Modules of PyTorch that leave a run and come back: exports that load strictly, predictions, initial values."""

import h5py
import numpy as np
import pytest
import torch

import mpidl
import torch_modules
from mpidl.runs.evaluate import predict
from mpidl.runs.load import export
from mpidl.storage.tensor_files import save
from rows import in_turn

MAKERS = {"mlp": torch_modules.mlp, "cnn": torch_modules.cnn, "transformer": torch_modules.transformer}


@pytest.fixture
def trained(request, tmp_path, monkeypatch):
    """Return a function that trains a module, by a factory; it returns the module that a script would have."""
    monkeypatch.chdir(tmp_path)

    def train(name, **arguments):
        config = {
            "data": {"source": "digits"},
            "model": {"factory": f"torch_factories:{name}", "loss": "cross_entropy"},
            "server": {"rule": "sgd", "rate": 0.05},
        }
        makers = "\n".join(f"def {each}(dataset, seed): return torch_modules.{each}(seed)" for each in MAKERS)
        (tmp_path / "torch_factories.py").write_text(f"import torch_modules\n{makers}\n")
        return mpidl.train(config=config, name=name, steps=5, device="cpu", **arguments)

    return train


@pytest.mark.parametrize("name", list(MAKERS))
def test_an_export_loads_strictly_and_predicts_the_same(trained, tmp_path, name):
    from safetensors.torch import load_file

    summary = trained(name)
    run = tmp_path / summary["run_dir"]
    export(run, "torch", file=tmp_path / "model.pt")
    export(run, "safetensors", file=tmp_path / "model.safetensors")
    predict(run, "test", tmp_path / "out.h5")
    test = mpidl.Digits().open().test
    batch = test.gather(np.arange(test.samples))
    np.save("data.npy", batch.inputs)
    predict(run, "data.npy", tmp_path / "again.h5")
    with h5py.File("out.h5") as file, h5py.File("again.h5") as again:
        outputs = file["outputs"][...]
        np.testing.assert_array_equal(again["outputs"], outputs)
    for state in (torch.load("model.pt", weights_only=True), load_file("model.safetensors")):
        module = MAKERS[name](9).eval()
        module.load_state_dict(state, strict=True)
        with torch.no_grad():
            found = module(torch.from_numpy(batch.inputs.copy())).numpy()
        np.testing.assert_allclose(found, outputs, atol=1e-6)
    assert np.mean(outputs.argmax(axis=1) == batch.targets) == pytest.approx(summary["test_accuracy"])


@pytest.mark.parametrize(("name", "kind"), in_turn(MAKERS, [("run",), ("torch",), ("safetensors",), ("npz",)], each=2))
def test_a_module_begins_with_trained_values(trained, tmp_path, name, kind):
    module = MAKERS[name](7)
    if name == "cnn":
        for norm in module.norms:
            norm.running_mean += 3
            norm.num_batches_tracked += 5
    state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    path = tmp_path / {"torch": "m.pt", "safetensors": "m.safetensors", "npz": "m.npz", "run": "runs/first"}[kind]
    if kind == "torch":
        torch.save(state, path)
    elif kind == "run":
        data = mpidl.Digits()
        mpidl.train(module, data, loss="cross_entropy", rule=mpidl.Sgd(0.1), name="first", steps=3, device="cpu")
        state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    else:
        save(path, kind, {key: tensor.numpy() for key, tensor in state.items()}, {})
    summary = trained(name, initial=path)
    begun = mpidl.load(tmp_path / summary["run_dir"], 0)
    for key, tensor in begun.tensors.items():
        np.testing.assert_array_equal(tensor, state[key].numpy(), err_msg=key)


def test_a_module_of_other_names_is_one_line(trained, tmp_path):
    state = {f"module.{key}": tensor for key, tensor in torch_modules.mlp().state_dict().items()}
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(mpidl.UsageError) as caught:
        trained("mlp", initial="model.pt")
    expected = "no tensor '1.weight', which the model has; the nearest name is 'module.1.weight'"
    assert str(caught.value) == f"model.initial: model.pt: {expected}"
