"""The jobs of Sandblaster on modules of one's own: a physics-informed network, and force matching."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
minimize = pytest.importorskip("scipy.optimize").minimize

from mpidl.config import load  # noqa: E402
from mpidl.job.build import build  # noqa: E402
from mpidl.runs.simulate import simulate  # noqa: E402

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """Return a function: the configuration of a job of `jobs/`, for a virtual cluster."""
    monkeypatch.chdir(JOBS.parent)

    def configure(name, *overrides):
        virtual = ("virtual.compute=exponential:0.01", "algorithm.backups=false", f"run.dir={tmp_path}")
        return load(JOBS / f"{name}.toml", [*virtual, *overrides])

    return configure


def whole(model, split):
    """Return the loss and the gradient of all samples as SciPy takes them."""
    batch = split.gather(np.arange(split.samples))

    def evaluate(x):
        model.parameters[:] = x
        value, gradient = model.loss_and_gradient(batch)
        return value, gradient.copy()

    return evaluate


def iterations(summary):
    lines = (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "iteration" in record]


@pytest.mark.long
def test_the_physics_informed_network_reaches_scipys_objective_in_as_many_evaluations(configured):
    job = build(configured("torch_burgers"))
    assert job.dataset.train.gather(np.arange(3)).inputs.dtype == np.float64
    evaluate, start = whole(job.original, job.dataset.train), job.original.parameters.copy()
    converged = {"maxcor": 10, "ftol": 0, "gtol": 1e-9, "maxfun": 5000, "maxiter": 5000}
    found = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=converged)
    summary = simulate(configured("torch_burgers", f"run.epochs={int(1.1 * found.nfev)}"), replicas=3)
    done = iterations(summary)
    # Each evaluation is an epoch.
    reached = [each["epoch"] for each in done if each["iteration"]["objective"] <= found.fun * (1 + 1e-6)]
    assert min(reached) <= 1.1 * found.nfev
    assert done[-1]["iteration"]["gradient_norm"] <= 1e-6
    # The measurements' noise has the square 0.0025; the viscosity is 0.1.
    assert summary["test_loss"] < 0.0002
    job.original.parameters[:] = found.x
    assert abs(job.original.module.viscosity.item() - 0.1) < 0.01


def test_ssbroyden_is_a_tenth_as_far_above_the_minimum_as_l_bfgs_after_as_many_evaluations(configured):
    """The noise of the measurements keeps the objective itself from falling further."""
    found, whole = {}, ("run.epochs=150", "data.batch=1000", "data.portion=1000")
    for method in ("lbfgs", "ssbroyden"):
        summary = simulate(configured("torch_burgers", *whole, f"algorithm.method={method}"), replicas=1)
        found[method] = summary["iteration"]["objective"] - 0.0011205725231699
    assert 0 <= found["ssbroyden"] + 1e-12 < found["lbfgs"] / 10


def test_force_matching_learns_energies_and_forces(configured):
    job = build(configured("torch_forces"))
    test = job.dataset.test.gather(np.arange(job.dataset.test.samples))
    assert test.total == pytest.approx(test.targets[1].sum())
    before = job.original.evaluate(test)[0] / test.total
    summary = simulate(configured("torch_forces", "run.epochs=60"), replicas=3)
    assert summary["test_loss"] < 0.05 * before


def test_forces_are_slopes_of_the_energy(configured):
    job = build(configured("torch_forces"))
    batch, step = job.dataset.test.gather(np.arange(2)), 1e-5
    module = job.original.module.eval()
    moved = [batch.inputs.copy(), batch.inputs.copy()]
    moved[0][:, 1, 2] += step
    moved[1][:, 1, 2] -= step
    with torch.no_grad():
        forces = module(torch.from_numpy(batch.inputs))[:, 1:].reshape(2, 5, 3)
        above, below = (module(torch.from_numpy(each))[:, 0] for each in moved)
    np.testing.assert_allclose((below - above) / (2 * step), forces[:, 1, 2], rtol=1e-6)
