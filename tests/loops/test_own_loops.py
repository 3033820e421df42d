"""Loops of the user's own over vectors: they train as `mpidl.train` does, and what they do wrong is one line."""

from functools import partial

import numpy as np
import pytest

import mpidl
from mpidl.data import Arrays
from mpidl.errors import MpidlError, UsageError
from mpidl.loops.switch import MOST_EMPTY, LoopError

INPUTS = np.random.default_rng(0).normal(size=(61, 5))
TARGETS = INPUTS @ np.arange(5.0)[:, None] + 1


class Line:
    """Least squares."""

    def __init__(self):
        self.parameters = np.zeros(6)

    def loss_and_gradient(self, batch):
        inputs = np.column_stack([batch.inputs, np.ones(len(batch.inputs))])
        error = inputs @ self.parameters - batch.targets[:, 0]
        return float(error @ error) / 2 / len(error), inputs.T @ error / len(error)


class Bare:
    """The same parameters alone."""

    def __init__(self):
        self.parameters = np.zeros(6)


def gradient(parameters, inputs, targets):
    return Line.loss_and_gradient(Bare_with(parameters), mpidl.Batch(inputs, targets))


def Bare_with(parameters):
    bare = Bare()
    bare.parameters = parameters
    return bare


def plain(replica):
    """The loop that does what `mpidl.train` does."""
    for inputs, targets in replica.batches():
        loss, found = gradient(replica.parameters, inputs, targets)
        replica.step(loss, gradient=found)


@pytest.fixture
def options(tmp_path):
    return {"dir": str(tmp_path), "batch": 7, "epochs": 3, "rule": mpidl.Adam(0.1), "portion": 14}


DATA = Arrays((INPUTS, TARGETS), (INPUTS, TARGETS))


@pytest.mark.parametrize("given", [Line, Bare])
@pytest.mark.parametrize("algorithm", ["downpour", "ssp", "sync", "diloco", "easgd", "hogwild", "softsync"])
def test_a_loop_trains_as_train_does(options, given, algorithm):
    if algorithm == "easgd":
        options["rule"] = None
    model, expected = given(), Line()
    found = mpidl.loop(plain, model, DATA, algorithm=algorithm, **options)
    summary = mpidl.train(expected, DATA, algorithm=algorithm, **options)
    assert np.array_equal(model.parameters, expected.parameters)
    assert found["train_loss"] == summary["train_loss"]
    assert found["samples"] == summary["samples"] == 3 * 61


def test_several_steps_with_one_batch_are_serial_steps(options):
    seen = []

    def three(replica):
        for inputs, targets in replica.batches():
            seen.append((inputs, targets))
            for _ in range(3):
                replica.step(gradient=gradient(replica.parameters, inputs, targets)[1])

    model, expected = Bare(), np.zeros(6)
    summary = mpidl.loop(three, model, DATA, **options | {"rule": mpidl.Sgd(0.1)})
    for inputs, targets in seen:
        for _ in range(3):
            expected -= 0.1 * gradient(expected, inputs, targets)[1]
    assert np.allclose(model.parameters, expected, rtol=0, atol=1e-12)
    assert summary["pushes"] == 3 * len(seen)
    assert summary["samples"] == 3 * 61


def test_batches_belong_to_the_loop(options):
    kept = []

    def keep(replica):
        for inputs, targets in replica.batches():
            kept.append((inputs, targets))
            replica.step(gradient=np.zeros(6))

    mpidl.loop(keep, Bare(), DATA, **options)
    rows = np.concatenate([inputs for inputs, _ in kept])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, np.tile(INPUTS, (3, 1))))


def test_a_loop_may_end_early(options):
    after = []

    def few(replica):
        for number, (inputs, targets) in enumerate(replica.batches()):
            if number == 4:
                break
            replica.step(gradient=gradient(replica.parameters, inputs, targets)[1])
        after.append(replica.parameters.copy())

    model = Bare()
    summary = mpidl.loop(few, model, DATA, **options)
    assert (summary["samples"], summary["pushes"]) == (28, 4)
    assert np.array_equal(after[0], model.parameters)


@pytest.mark.parametrize("algorithm", ["sync", "downpour"])
def test_a_loop_that_keeps_a_gradient_for_itself_ends(options, algorithm):
    def few(replica):
        for number, (inputs, targets) in enumerate(replica.batches()):
            if number == 4:
                return
            if number != 2:
                replica.step(gradient=gradient(replica.parameters, inputs, targets)[1])

    assert mpidl.loop(few, Bare(), DATA, algorithm=algorithm, **options)["pushes"] in (3, 4)


def test_an_endless_loop_is_ended(options):
    passes = []

    def endless(replica):
        while True:
            passes.append(0)
            plain(replica)

    assert mpidl.loop(endless, Bare(), DATA, **options)["epochs"] == 3
    assert len(passes) == MOST_EMPTY + 1


def test_a_loop_without_data_counts_steps(options):
    del options["epochs"], options["batch"], options["portion"]
    seen = []

    def own(replica):
        for number in replica.share(iter(range(10**9))):
            seen.append(number)
            replica.step(loss=number, gradient=np.ones(6))

    model = Bare()
    summary = mpidl.loop(own, model, steps=30, **options | {"rule": mpidl.Sgd(0.5)})
    assert seen == [*range(30)]
    assert summary["pushes"] == 30
    assert (model.parameters == -15).all()
    assert summary["test_loss"] is None


def test_a_function_evaluates(options):
    modes = []

    def evaluate(model, replica):
        modes.append(replica.number)
        return {"loss": float(np.abs(model.parameters).sum()), "distance": np.float32(2.5), "accuracy": 0.25}

    model = Bare()
    summary = mpidl.loop(plain, model, DATA, evaluate=evaluate, **options)
    assert summary["test_loss"] == pytest.approx(np.abs(model.parameters).sum())
    assert (summary["test_distance"], summary["test_accuracy"]) == (2.5, 0.25)
    assert len(modes) >= 4  # before, after each epoch but the last, and at the end


def test_the_state_of_a_loop_is_saved_with_the_batch_that_it_takes(options):
    seen = []

    def counted(replica):
        generator = np.random.default_rng(3)
        if "generator" in replica.state:
            generator.bit_generator.state = replica.state["generator"]
        steps = replica.state.get("steps", 0)
        for inputs, targets in replica.batches():
            assert replica.state.get("steps", 0) == steps
            noise = generator.normal(size=6)
            seen.append((steps, noise[0]))
            replica.step(gradient=gradient(replica.parameters, inputs, targets)[1] + 0.01 * noise)
            steps += 1
            replica.state.update(steps=steps, generator=generator.bit_generator.state)

    del options["epochs"]
    through, struck = Bare(), Bare()
    mpidl.loop(counted, through, DATA, steps=20, deterministic=True, name="through", **options)
    expected, seen[:] = list(seen), []
    mpidl.loop(counted, struck, DATA, steps=9, deterministic=True, name="struck", **options)
    mpidl.loop(counted, Bare(), DATA, steps=20, deterministic=True, name="struck", resume=True, **options)
    assert seen == expected
    resumed = mpidl.load(mpidl.open(f"{options['dir']}/struck").directory)
    assert np.array_equal(resumed.tensors["parameters"], through.parameters)


def test_batches_that_no_step_has_taken_come_again_when_a_run_continues(options):
    def loop(replica, rest=True):
        sizes = []
        for inputs, _ in replica.batches():
            sizes.append(len(inputs))
            if len(sizes) == 4:
                replica.step(gradient=np.full(6, float(sum(sizes))))
                sizes.clear()
        if sizes and rest:
            replica.step(gradient=np.full(6, float(sum(sizes))))

    del options["epochs"]
    options["rule"], through = mpidl.Sgd(1.0), Bare()
    expected = mpidl.loop(loop, through, DATA, steps=20, name="through", **options)
    mpidl.loop(partial(loop, rest=False), Bare(), DATA, steps=11, name="struck", **options)
    found = mpidl.loop(loop, Bare(), DATA, steps=20, name="struck", resume=True, **options)
    resumed = mpidl.load(mpidl.open(f"{options['dir']}/struck").directory)
    assert np.array_equal(resumed.tensors["parameters"], through.parameters)
    assert found["samples"] == expected["samples"]


def raising(replica):
    raise ValueError("of the loop")


def without_gradient(replica):
    for _ in replica.batches():
        replica.step(0.5)


def of_other_shape(replica):
    for _ in replica.batches():
        replica.step(gradient=np.zeros(5))


def no_number(replica):
    for _ in replica.batches():
        replica.step([0.5], gradient=np.zeros(6))


def a_part(replica):
    for _ in replica.batches():
        replica.step("generator", gradient=np.zeros(6))


def step_behind_the_last_batch(replica):
    plain(replica)
    replica.step(gradient=np.zeros(6))


def unsaved(replica):
    replica.state["file"] = object()
    plain(replica)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raising, r"the loop raised ValueError: of the loop"),
        (without_gradient, r"replica.step: no gradient, expected step\(gradient=...\)"),
        (of_other_shape, r"the gradient has the shape \(5,\), expected \(6,\)"),
        (no_number, r"replica.step: the loss is a list, expected a number"),
        (a_part, r"replica.step: 'generator' alone needs a dict of modules"),
        (step_behind_the_last_batch, r"replica.step was called after the last batch"),
        (unsaved, r"replica.state\['file'\]: found an object, expected numbers"),
    ],
)
def test_what_a_loop_does_wrong_is_one_line(options, function, says):
    with pytest.raises(LoopError, match=says) as raised:
        mpidl.loop(function, Bare(), DATA, **options)
    assert "\n" not in str(raised.value).split(" (MPIDL_DEBUG")[0]


def test_steps_are_made_inside_of_the_loop(options):
    replicas = []

    def keep(replica):
        replicas.append(replica)
        plain(replica)

    mpidl.loop(keep, Bare(), DATA, **options)
    with pytest.raises(LoopError, match=r"replica\.step was called outside of the loop"):
        replicas[0].step(gradient=np.zeros(6))
    with pytest.raises(LoopError, match=r"replica\.batches was called outside of the loop"):
        next(replicas[0].batches())


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (3, "returned an int, expected a dict"),
        ({"distance": 3.0}, "returned no 'loss'"),
        ({"loss": [1, 2]}, "the figure loss of evaluate is a list, expected a number"),
    ],
)
def test_what_a_function_evaluates_wrong_is_one_line(options, returned, says):
    with pytest.raises(MpidlError, match=says):
        mpidl.loop(plain, Bare(), DATA, evaluate=lambda *_: returned, **options)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"algorithm": "sandblaster", "rule": None}, "algorithm: sandblaster asks for gradients as it needs them"),
        ({"function": 3}, "function: found an int, expected a function"),
        ({"evaluate": 3}, "evaluate: found an int, expected a function"),
        ({"data": None}, "epochs: a loop without data counts steps, expected steps"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(options, arguments, says):
    given = {"function": plain, "model": Bare(), "data": DATA} | options | arguments
    with pytest.raises(UsageError, match=says):
        mpidl.loop(given.pop("function"), given.pop("model"), given.pop("data"), **given)


def test_what_a_loop_logs_is_in_records_and_in_the_summary(options):
    def logging(replica):
        for number, (inputs, targets) in enumerate(replica.batches()):
            loss, found = gradient(replica.parameters, inputs, targets)
            replica.step(loss, gradient=found)
            replica.log(number=number, norm=np.float32(replica.gradient_norm))
            if number % 2:
                replica.log(odd=1.0)

    records = []
    summary = mpidl.loop(logging, Bare(), DATA, callbacks=[records.append], **options)
    batches = 3 * -(-61 // 7)
    assert summary["logged"]["number"] == (batches - 1) / 2
    assert summary["logged"]["odd"] == 1.0
    assert summary["logged"]["norm"] > 0
    assert records[-1]["logged"].keys() <= {"number", "norm", "odd"}


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"reward": "high"}, r"replica\.log: reward is a str, expected a number"),
        ({"n" * 25: 1.0}, r"expected at most 8, of 24 bytes"),
        ({f"figure{number}": 1.0 for number in range(9)}, r"replica\.log: figure8 is one figure more"),
    ],
)
def test_what_can_not_be_logged_is_one_line(options, figures, says):
    def logging(replica):
        for _ in replica.batches():
            replica.log(**figures)
            replica.step(gradient=np.zeros(6))

    with pytest.raises(LoopError, match=says):
        mpidl.loop(logging, Bare(), DATA, **options)


def test_ranks_are_not_started_by_a_keyword(options):
    with pytest.raises(
        UsageError, match=r"unknown keyword 'n', expected ranks that run a script: mpidl run SCRIPT -n 4"
    ):
        mpidl.loop(plain, Bare(), DATA, n=4, **options)
