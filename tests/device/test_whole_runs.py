"""A run in one process on a device, and the evaluation of its checkpoint on the device."""

import pytest

import fake_cupy
from mpidl.config import from_dict
from mpidl.nn.ondevice import Mirrored, OnDevice
from mpidl.runs.evaluate import evaluate
from mpidl.runs.start import run


def configuration(path, **device):
    return from_dict(
        {
            "run": {"dir": str(path), "steps": 20},
            "data": {"source": "digits", "batch": 32},
            "model": {"layer": [{"type": "dense", "units": 10}], "dtype": "float64"},
            "device": device,
        }
    )


def test_a_run_and_its_evaluation(cupy, tmp_path, monkeypatch):
    computed = []
    for kind, name in ((OnDevice, "evaluate"), (Mirrored, "loss_and_gradient")):
        compute = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda *each, compute=compute: (computed.append(type(each[0])), compute(*each))[1]
        )
    summary = run(configuration(tmp_path, kind="cuda"))
    assert set(computed) == {Mirrored}
    computed.clear()
    result = evaluate(tmp_path / "run")
    # Nothing changes its parameters between batches.
    assert set(computed) == {OnDevice}
    close = 1e-12 if cupy.ndarray is fake_cupy.Array else 1e-6
    assert result["test_loss"] == pytest.approx(summary["test_loss"], rel=close)
    monkeypatch.undo()
    expected = run(configuration(tmp_path / "cpu", kind="cpu"))
    assert summary["test_loss"] == pytest.approx(expected["test_loss"], rel=close)
