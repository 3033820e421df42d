"""Loops of the user's own over PyTorch modules: gradients are where PyTorch puts them, statistics and seeds as ever."""

import copy

import numpy as np
import pytest
import torch

import mpidl
from mpidl.loops.switch import LoopError
from torch_modules import cnn, functional, mlp, noisy, transformer


def plain(replica):
    """The loop that does what `mpidl.train` does."""
    for images, labels in replica.batches():
        loss = functional.cross_entropy(replica.model(images), labels)
        loss.backward()
        replica.step(loss)


@pytest.fixture
def options(tmp_path):
    return {"dir": str(tmp_path), "batch": 37, "epochs": 2, "seed": 5, "device": {"kind": "cpu"}}


def back_propagated_by_steps(replica):
    """The same, shorter, and layers leave while those below back-propagate."""
    for images, labels in replica.batches():
        replica.step(functional.cross_entropy(replica.model(images), labels))


def states(module):
    return [value.numpy().tobytes() for value in module.state_dict().values()]


@pytest.mark.parametrize("algorithm", ["downpour", "ssp", "sync", "diloco", "easgd", "averaging", "ringleader"])
@pytest.mark.parametrize("make", [noisy, cnn, transformer])
@pytest.mark.parametrize("loop", [plain, back_propagated_by_steps])
def test_a_loop_trains_as_train_does(options, make, algorithm, loop):
    module, expected = make(), make()
    options |= {"algorithm": algorithm, "loss": "cross_entropy"}
    summary = mpidl.loop(loop, module, mpidl.Digits(), **options)
    trained = mpidl.train(expected, mpidl.Digits(), **options)
    assert states(module) == states(expected)
    for figure in ("train_loss", "test_loss", "test_accuracy", "samples"):
        assert summary[figure] == trained[figure], figure


def test_clipping_schedules_and_groups_are_those_of_train(options):
    options |= {
        "loss": "cross_entropy", "clip": 0.5, "l2": 0.01, "ema": 0.9, "rule": mpidl.Momentum(0.1, 0.9),
        "rate": {"schedule": "cosine"}, "groups": [{"match": "1.*", "rate": 0.01}],
    }  # fmt: skip
    module, expected = mlp(), mlp()
    mpidl.loop(plain, module, mpidl.Digits(), **options)
    mpidl.train(expected, mpidl.Digits(), **options)
    assert states(module) == states(expected)


@pytest.mark.parametrize("batch", [36, 37])
def test_gradients_of_several_batches_are_added_up(options, batch):
    """Also where the run ends, or is saved, between two steps; statistics are those of all batches."""
    batches, norms = [], []

    def four(replica):
        for number, (images, labels) in enumerate(replica.batches(), 1):
            batches.append((images, labels))
            loss = functional.cross_entropy(replica.model(images), labels) / 4
            loss.backward()
            if number % 4 == 0:
                norms.append(torch.nn.utils.clip_grad_norm_(replica.model.parameters(), 0.1))
                replica.step(loss * 4)
        replica.state["rest"] = len(batches) % 4

    module, expected = cnn(), cnn()
    summary = mpidl.loop(four, module, mpidl.Digits(), rule=mpidl.Sgd(0.5), **options | {"batch": batch})
    optimizer = torch.optim.SGD(expected.parameters(), 0.5)
    for number, (images, labels) in enumerate(batches, 1):
        (functional.cross_entropy(expected(images), labels) / 4).backward()
        if number % 4 == 0:
            assert norms[number // 4 - 1] == pytest.approx(
                float(torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.1))
            )
            optimizer.step()
            optimizer.zero_grad()
    # A push is of all batches since the last one: the run's last batches, without a step, are a push of zeros at most.
    assert summary["pushes"] - len(batches) // 4 in (0, 1)
    trained = module.state_dict()
    for name, value in expected.state_dict().items():
        if value.is_floating_point() and (not name.endswith(("mean", "var")) or len(batches) % 4 == 0):
            assert torch.allclose(trained[name], value, rtol=1e-4, atol=1e-6), name


def test_a_step_back_propagates_only_if_the_loop_has_not(options):
    """The last loss of several whose gradients add up is back-propagated by the loop, as those before."""

    def two(replica):
        for images, labels in replica.batches():
            loss = functional.cross_entropy(replica.model(images), labels)
            (loss / 2).backward(retain_graph=True)
            (loss / 2).backward()
            replica.step(loss)

    module, expected = mlp(), mlp()
    mpidl.loop(two, module, mpidl.Digits(), rule=mpidl.Sgd(0.1), **options)
    mpidl.loop(plain, expected, mpidl.Digits(), rule=mpidl.Sgd(0.1), **options)
    for own, other in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(own, other, rtol=1e-4, atol=1e-6)


def test_two_modules_by_their_names(options):
    def both(replica):
        coder, decoder = replica.model["coder"], replica.model["decoder"]
        for images, _ in replica.batches():
            loss = functional.mse_loss(decoder(torch.tanh(coder(images.flatten(1)))), images.flatten(1))
            loss.backward()
            replica.step(loss)

    torch.manual_seed(1)
    modules = {"coder": torch.nn.Linear(64, 9), "decoder": torch.nn.Linear(9, 64)}
    before = copy.deepcopy(modules)
    summary = mpidl.loop(both, modules, mpidl.Digits(), **options)
    assert all(not torch.equal(modules[name].weight, before[name].weight) for name in modules)
    assert "coder.weight" in mpidl.load(summary["run_dir"]).tensors


def test_a_function_evaluates_the_module_in_its_mode_for_evaluations(options):
    modes = []

    def evaluate(module, replica):
        modes.append((module.training, replica.model is module))
        return {"loss": torch.tensor(0.5), "distance": sum(each.abs().sum() for each in module.parameters())}

    summary = mpidl.loop(plain, noisy(), mpidl.Digits(), evaluate=evaluate, **options)
    assert set(modes) == {(False, True)}
    assert summary["test_loss"] == 0.5
    assert summary["test_distance"] > 1


def test_without_a_loss_nothing_is_evaluated(options):
    assert mpidl.loop(plain, mlp(), mpidl.Digits(), **options)["test_loss"] is None


def test_the_loss_of_a_step_is_optional(options):
    def silent(replica):
        for images, labels in replica.batches():
            functional.cross_entropy(replica.model(images), labels).backward()
            replica.step()

    assert mpidl.loop(silent, mlp(), mpidl.Digits(), **options)["train_loss"] is None


def test_a_loop_goes_on_where_it_was_saved(options, tmp_path):
    """Also with dropout and a counter of its own, in the middle of an epoch."""

    def counted(replica):
        steps = replica.state.get("steps", 0)
        for images, labels in replica.batches():
            loss = functional.cross_entropy(replica.model(images + 0.01 * steps), labels)
            loss.backward()
            replica.step(loss)
            steps += 1
            replica.state["steps"] = steps

    del options["epochs"]
    options["deterministic"] = True
    through, struck = noisy(), noisy()
    mpidl.loop(counted, through, mpidl.Digits(), steps=60, name="through", **options)
    mpidl.loop(counted, noisy(), mpidl.Digits(), steps=23, name="struck", **options)
    summary = mpidl.loop(counted, struck, mpidl.Digits(), steps=60, name="struck", resume=True, **options)
    assert states(struck) == states(through)
    assert summary["samples"] > 60 * 30


def without_gradient(replica):
    for _ in replica.batches():
        replica.step()


def twice(replica):
    for images, labels in replica.batches():
        functional.cross_entropy(replica.model(images), labels).backward()
        replica.step()
        replica.step()


def the_same_loss_twice(replica):
    for images, labels in replica.batches():
        loss = functional.cross_entropy(replica.model(images), labels)
        replica.step(loss)
        replica.step(loss)


def with_a_vector(replica):
    for _ in replica.batches():
        replica.step(gradient=np.zeros(3))


def replaced(replica):
    for images, labels in replica.batches():
        replica.model[1].weight = torch.nn.Parameter(torch.zeros(33, 64))
        functional.cross_entropy(replica.model(images), labels).backward()
        replica.step()


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (without_gradient, "no gradient since the last step"),
        (twice, "no gradient since the last step"),
        (the_same_loss_twice, r"replica\.step: loss\.backward\(\) raised RuntimeError"),
        (with_a_vector, "gradient is for models of NumPy and JAX"),
        (replaced, "has replaced its parameter 1.weight"),
    ],
)
def test_what_a_loop_does_wrong_is_one_line(options, function, says):
    with pytest.raises((LoopError, mpidl.MpidlError), match=says):
        mpidl.loop(function, mlp(), mpidl.Digits(), **options)


def test_an_optimizer_of_the_loop_is_noticed(options, capfd):
    def own(replica):
        optimizer = torch.optim.SGD(replica.model.parameters(), 0.1)
        for images, labels in replica.batches():
            functional.cross_entropy(replica.model(images), labels).backward()
            optimizer.step()
            replica.step()

    mpidl.loop(own, mlp(), mpidl.Digits(), **options)
    assert capfd.readouterr().err.count("the loop changes parameters itself") == 1


def test_a_loop_that_is_left_in_the_middle_leaves_no_trace(options):
    ended = []

    def left(replica):
        try:
            for images, labels in replica.batches():
                loss = functional.cross_entropy(replica.model(images), labels) * float("nan")
                loss.backward()
                replica.step(loss)
        finally:
            ended.append(True)

    module = mlp()
    with pytest.raises(mpidl.MpidlError, match="the loss is nan"):
        mpidl.loop(left, module, mpidl.Digits(), **options)
    assert ended == [True]
    assert all(each.grad is None for each in module.parameters())
    functional.cross_entropy(module(torch.zeros(2, 64)), torch.zeros(2, dtype=torch.long)).backward()
    assert all(each.grad is not None for each in module.parameters())


def modules(normalised=True):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(64, 9), *[torch.nn.BatchNorm1d(9)] * normalised]
    return {"coder": torch.nn.Sequential(*layers), "decoder": torch.nn.Linear(9, 64)}


def distance(of, images):
    images = images.flatten(1)
    return functional.mse_loss(of["decoder"](torch.tanh(of["coder"](images))), images)


@pytest.mark.parametrize("servers", [1, 3])
def test_parts_step_by_themselves(options, servers):
    """The other's rule doesn't move: neither its moments nor its count of steps."""
    # Rounding alone is the gradient of a bias before normalisation.
    batches, own, plain = [], modules(normalised=False), modules(normalised=False)

    def alternating(replica):
        for number, (images, _) in enumerate(replica.batches()):
            batches.append(images)
            loss = distance(replica.model, images)
            loss.backward()
            replica.step(loss, "coder")
            if number % 3 == 0:
                replica.model["decoder"].zero_grad()
                distance(replica.model, images).backward()
                replica.step("decoder")
                replica.model["coder"].zero_grad()

    rules = {"coder": mpidl.Adam(0.01), "decoder": mpidl.Adam(0.03)}
    summary = mpidl.loop(alternating, own, mpidl.Digits(), rules=rules, servers=servers, **options)
    optimizers = {name: torch.optim.Adam(plain[name].parameters(), rules[name].rate) for name in plain}
    for number, images in enumerate(batches):
        distance(plain, images).backward()
        optimizers["coder"].step()
        optimizers["coder"].zero_grad()
        if number % 3 == 0:
            optimizers["decoder"].zero_grad()
            distance(plain, images).backward()
            optimizers["decoder"].step()
            optimizers["decoder"].zero_grad()
            optimizers["coder"].zero_grad()
    for name, module in plain.items():
        for found, expected in zip(own[name].parameters(), module.parameters(), strict=True):
            assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5), name
    assert summary["pushes"] == len(batches) + -(-len(batches) // 3)


def test_a_step_that_back_propagates_leaves_gradients_of_other_parts_alone(options):
    """Neither what they have is changed, nor is the loss's gradient put there."""

    def linear():
        layer = torch.nn.Linear(64, 1, bias=False)
        torch.nn.init.zeros_(layer.weight)
        return layer

    def loop(replica):
        a, b = (part.weight for part in replica.model.values())
        for _ in replica.batches():
            b.sum().backward()
            replica.step((a + 1000 * b).sum(), "a")
            replica.step("b")
            replica.step((1000 * a + b).sum(), "b")

    networks = {"a": linear(), "b": linear()}
    mpidl.loop(loop, networks, mpidl.Digits(), rule=mpidl.Sgd(1.0), **options)
    batches = 2 * -(-1437 // 37)
    assert (networks["a"].weight == -batches).all()
    assert (networks["b"].weight == -2 * batches).all()


def test_gradients_of_other_parts_stay(options):
    def both(replica):
        decoder = replica.model["decoder"]
        for images, _ in replica.batches():
            distance(replica.model, images).backward()
            replica.step("coder")
            assert decoder.weight.grad.abs().sum() > 0
            replica.step("decoder")
            assert all(each.grad is None for module in replica.model.values() for each in module.parameters())

    mpidl.loop(both, modules(), mpidl.Digits(), **options)


def of_no_part(replica):
    for images, _ in replica.batches():
        replica.step(distance(replica.model, images), "decodr")


def without_gradient_of_the_part(replica):
    for images, _ in replica.batches():
        distance(replica.model, images).backward()
        replica.step("coder")
        replica.step("coder")


@pytest.mark.parametrize(
    ("function", "changed", "says"),
    [
        (of_no_part, {}, "no part 'decodr' of the model, did you mean 'decoder'"),
        (without_gradient_of_the_part, {}, "no gradient since the last step"),
        (of_no_part, {"algorithm": "sync"}, "'decodr' alone needs a dict of modules, and algorithm downpour"),
        (
            of_no_part,
            {"rules": {"coder": mpidl.Adam(0.1)}},
            "rules: for coder, expected one for each module: coder, d",
        ),
        (
            of_no_part,
            {"rules": {"coder": mpidl.Adam(0.1), "decoder": mpidl.Adam(0.1, beta1=0.5)}},
            "rules: decoder: .* expected rules that differ in their rates alone",
        ),
        (of_no_part, {"rules": {}, "rule": "adam"}, "rules: rule or groups are given, too"),
    ],
)
def test_what_steps_of_parts_do_wrong_is_one_line(options, function, changed, says):
    with pytest.raises(mpidl.MpidlError, match=says):
        mpidl.loop(function, modules(), mpidl.Digits(), **options | changed)


def test_a_run_of_parts_goes_on_where_it_was_saved(options):
    def both(replica):
        for images, _ in replica.batches():
            replica.step(distance(replica.model, images), "coder")
            replica.model["decoder"].zero_grad()
            replica.step(distance(replica.model, images), "decoder")
            replica.model["coder"].zero_grad()

    del options["epochs"]
    options |= {"deterministic": True, "rules": {"coder": mpidl.Adam(0.01), "decoder": mpidl.Adam(0.02)}}
    through, struck = modules(), modules()
    mpidl.loop(both, through, mpidl.Digits(), steps=50, servers=2, name="through", **options)
    mpidl.loop(both, modules(), mpidl.Digits(), steps=21, servers=2, name="struck", **options)
    mpidl.loop(both, struck, mpidl.Digits(), steps=50, servers=3, name="struck", resume=True, **options)
    for name in through:
        assert states(struck[name]) == states(through[name])
