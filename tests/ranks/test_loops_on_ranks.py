"""Loops of the user's own on the ranks of the test's world."""

import os
import signal

import numpy as np
import pytest

import mpidl
from mpidl.data import Arrays

pytestmark = pytest.mark.mpi(min_size=3)

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(211, 5))
DATA = Arrays((INPUTS, INPUTS @ np.arange(5.0)[:, None] + 1), (INPUTS[:9], INPUTS[:9, :1]))


class Line:
    """Least squares."""

    def __init__(self):
        self.parameters = np.zeros(6)

    def loss_and_gradient(self, batch):
        return loss_and_gradient(self.parameters, batch.inputs, batch.targets)


def loss_and_gradient(parameters, inputs, targets):
    inputs = np.column_stack([inputs, np.ones(len(inputs))])
    error = inputs @ parameters - targets[:, 0]
    return float(error @ error) / 2 / len(error), inputs.T @ error / len(error)


def plain(replica):
    for inputs, targets in replica.batches():
        loss, gradient = loss_and_gradient(replica.parameters, inputs, targets)
        replica.step(loss, gradient=gradient)


@pytest.fixture
def options(shared_path):
    return {"dir": str(shared_path), "batch": 7, "portion": 14, "epochs": 4, "rule": mpidl.Adam(0.05)}


@pytest.mark.parametrize("algorithm", ["downpour", "ssp", "easgd", "diloco", "sync", "softsync"])
def test_a_loop_trains_as_train_does(options, algorithm):
    if algorithm == "easgd":
        options["rule"] = None
    model, expected = Line(), Line()
    options |= {"algorithm": algorithm, "deterministic": True}
    found = mpidl.loop(plain, model, DATA, **options)
    summary = mpidl.train(expected, DATA, **options)
    assert np.array_equal(model.parameters, expected.parameters)
    assert found["samples"] == summary["samples"] == 4 * 211
    assert found["train_loss"] == summary["train_loss"]


@pytest.mark.parametrize("algorithm", ["downpour", "sync", "hogwild", "ssp"])
def test_each_sample_is_used_once_an_epoch(comm, options, algorithm):
    used = np.zeros(211)

    def count(replica):
        places = {row.tobytes(): number for number, row in enumerate(INPUTS)}
        for number, (inputs, _) in enumerate(replica.batches()):
            for row in inputs:
                used[places[row.tobytes()]] += 1
            if number % 2:
                replica.step(gradient=np.zeros(6))  # of two batches

    mpidl.loop(count, Line(), DATA, algorithm=algorithm, **options)
    assert (comm.allreduce(used) == 4).all()


@pytest.mark.parametrize("algorithm", ["downpour", "sync", "diloco"])
def test_replicas_end_at_different_steps(options, algorithm):
    def few(replica):
        for number, (inputs, targets) in enumerate(replica.batches()):
            if number == 3 + 5 * replica.number:
                return
            replica.step(gradient=loss_and_gradient(replica.parameters, inputs, targets)[1])

    summary = mpidl.loop(few, Line(), DATA, algorithm=algorithm, **options)
    assert summary["samples"] >= 21


def test_each_worker_has_its_own_state(comm, options):
    """A run that continues with as many workers gives each its own."""
    seen = []

    def counted(replica):
        seen.append(replica.state.get("steps"))
        steps = replica.state.get("steps", 0)
        for inputs, targets in replica.batches():
            replica.step(gradient=loss_and_gradient(replica.parameters, inputs, targets)[1])
            steps += 1
            replica.state["steps"] = steps

    del options["epochs"]
    options |= {"deterministic": True, "name": "struck"}
    mpidl.loop(counted, Line(), DATA, steps=40, **options)
    mpidl.loop(counted, Line(), DATA, steps=60, resume=True, **options)
    workers = [each for each in comm.allgather(seen) if each]
    assert all(first is None for first, _ in workers)
    assert sum(second for _, second in workers) == 40


def test_a_loop_without_data(comm, options):
    own, seen = RNG.normal(size=(comm.size, 100)), []

    def drawn(replica):
        for value in replica.share(own[comm.rank]):
            seen.append(value)
            replica.step(loss=abs(value), gradient=np.full(6, value))

    model = Line()
    for each in ("epochs", "batch", "portion"):
        del options[each]
    mpidl.loop(drawn, model, steps=33, **options | {"rule": mpidl.Sgd(1.0)})
    values = np.concatenate(comm.allgather(seen))
    assert len(values) == 33
    assert np.allclose(model.parameters, -values.sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", ["downpour", "sync", "backup_sync"])
def test_a_step_back_propagates_the_loss_of_a_module(options, algorithm):
    torch = pytest.importorskip("torch")
    from torch_modules import noisy

    def loop(replica):
        for images, labels in replica.batches():
            replica.step(torch.nn.functional.cross_entropy(replica.model(images), labels))

    module, expected = noisy(), noisy()
    options |= {"algorithm": algorithm, "deterministic": True, "loss": "cross_entropy", "batch": 32, "portion": 32}
    found = mpidl.loop(loop, module, mpidl.Digits(), **options)
    summary = mpidl.train(expected, mpidl.Digits(), **options)
    for own, other in zip(module.state_dict().values(), expected.state_dict().values(), strict=True):
        assert torch.equal(own, other)
    assert found["test_loss"] == summary["test_loss"]


def test_what_workers_log_is_one_figure(comm, options):
    own = []

    def logging(replica):
        for inputs, targets in replica.batches():
            replica.step(gradient=loss_and_gradient(replica.parameters, inputs, targets)[1])
            own.append(float(len(own) + 10 * replica.number))
            replica.log(value=own[-1], **{f"of {replica.number}": 1.0})

    summary = mpidl.loop(logging, Line(), DATA, **options)
    values = np.concatenate(comm.allgather(own))
    assert summary["logged"].pop("value") == pytest.approx(values.mean())
    assert summary["logged"].keys() <= {f"of {number}" for number in range(summary["replicas"])}


def test_parts_step_by_themselves(comm, options):
    """Each sample counts once in each part that is stepped, and a part's shards count its own pushes."""
    torch = pytest.importorskip("torch")

    def of_one(size):
        module = torch.nn.Linear(size, 1, bias=False)
        torch.nn.init.zeros_(module.weight)
        return module

    def loop(replica):
        seen = 0.0
        for number, (inputs, _) in enumerate(replica.batches()):
            weight = replica.model["often"].weight
            weight.grad = torch.full_like(weight, -float(len(inputs)))
            replica.step("often")
            if number % 2:
                weight = replica.model["rarely"].weight
                # Others have stepped it, too; here it changes with this replica's steps alone.
                assert (weight == seen).all()
                weight.grad = torch.full_like(weight, -1.0)
                replica.step("rarely")
                steps.append(number)
                seen = weight[0, 0].item()

    steps, modules = [], {"often": of_one(9), "rarely": of_one(4)}
    rules = {"often": mpidl.Sgd(1.0), "rarely": mpidl.Sgd(2.0)}
    summary = mpidl.loop(loop, modules, DATA, **options | {"rule": None, "rules": rules})
    often, rarely = (modules[name].weight.detach().numpy() for name in modules)
    assert (often == 4 * 211).all()
    assert (rarely == 2 * comm.allreduce(len(steps))).all()
    assert summary["pushes"] == comm.allreduce(len(steps)) + 4 * 31  # batches of two, the last of one, in a portion


def test_parts_are_deterministic(comm, options):
    torch = pytest.importorskip("torch")

    def trained():
        torch.manual_seed(1)
        modules = {"first": torch.nn.Linear(5, 7), "second": torch.nn.Linear(7, 1)}

        def loop(replica):
            for inputs, targets in replica.batches():
                for part in modules:
                    outputs = modules["second"](torch.tanh(modules["first"](inputs.float())))
                    replica.step(torch.nn.functional.mse_loss(outputs, targets.float()), part)
                    for module in modules.values():
                        module.zero_grad()

        given = options | {"servers": comm.size // 2, "deterministic": True, "rule": mpidl.Adam(0.01)}
        mpidl.loop(loop, modules, DATA, **given)
        return [each.detach().numpy().tobytes() for module in modules.values() for each in module.parameters()]

    assert trained() == trained()


def test_a_deterministic_loop_with_several_steps_a_batch_stops_at_a_signal(options):
    def loop(replica):
        for number, (inputs, targets) in enumerate(replica.batches()):
            if number == 8 and replica.number == 0:
                os.kill(os.getpid(), signal.SIGINT)
            for _ in range(2 + replica.number % 2):
                replica.step(gradient=loss_and_gradient(replica.parameters, inputs, targets)[1])

    options |= {"epochs": 60, "deterministic": True, "on_interrupt": "return"}
    summary = mpidl.loop(loop, Line(), DATA, algorithm="downpour", **options)
    assert summary["interrupted"]
    assert summary["samples"] < 30 * 211
