"""JAX functions as models: their tensors, their gradients, and what is said of those that can't be trained."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import mpidl.jax.model
from jax_functions import cross_entropy, loss, loss_with_dropout, mlp, outputs, plain
from mpidl.config import from_dict
from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.jax import JaxModel
from mpidl.job.build import own_model
from mpidl.nn.adaptation import ModelError

RNG = np.random.default_rng(2)
BATCH = Batch(RNG.random((13, 64), np.float32), RNG.integers(0, 10, 13), number=4)


def test_examples():
    result = doctest.testmod(mpidl.jax.model)
    assert result.attempted
    assert not result.failed


@pytest.mark.usefixtures("float64")
def test_the_gradient_is_that_of_finite_differences():
    model = JaxModel(mlp(dtype=np.float64), plain)
    assert model.dtype == np.float64
    _, gradient = model.loss_and_gradient(BATCH)
    gradient = gradient.copy()
    for place in RNG.integers(0, model.layout.size, 40):
        before, losses = model.parameters[place], []
        for step in (1e-6, -1e-6):
            model.parameters[place] = before + step
            losses.append(model.loss_and_gradient(BATCH)[0])
        model.parameters[place] = before
        assert gradient[place] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-5, abs=1e-9)


def test_the_gradient_is_jaxs_own():
    model = JaxModel(mlp(), loss, has_aux=True)
    expected = jax.jit(jax.grad(plain))(mlp(), (BATCH.inputs, BATCH.targets))["layers"]
    for _ in range(2):  # the second doesn't add to the first
        _, gradient = model.loss_and_gradient(BATCH)
        for name, view in model.layout.views(gradient).items():
            _, number, key = name.split(".")
            assert np.array_equal(view, expected[int(number)][key]), name


def test_parameters_are_read_from_the_vector_and_returned_as_a_tree():
    parameters = mlp()
    model = JaxModel(parameters, plain)
    assert [tensor.name for tensor in model.layout] == [
        "layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"
    ]  # fmt: skip
    assert jax.tree.all(jax.tree.map(np.array_equal, model.tree(), parameters))
    before, _ = model.loss_and_gradient(BATCH)
    model.parameters[:] = 0
    assert model.loss_and_gradient(BATCH)[0] == pytest.approx(np.log(10), rel=1e-6)
    vector = np.concatenate([np.ravel(each) for each in jax.tree.leaves(parameters)])
    unaligned = np.empty(vector.size + 1, np.float32)[1:]
    unaligned[:] = vector
    model.parameters = unaligned
    assert model.loss_and_gradient(BATCH)[0] == before
    tree = model.tree()
    unaligned[:] = 0
    assert jax.tree.all(jax.tree.map(np.array_equal, tree, parameters))


def test_other_leaves_stay_as_they_are():
    def scaled(parameters, batch):
        assert parameters["power"] == 2
        assert parameters["nothing"] is None
        values = parameters["activation"](batch[0][:, parameters["columns"]]) * parameters["scale"]
        return jnp.mean(values ** parameters["power"]) + jax.random.uniform(parameters["key"])

    parameters = {
        "scale": jnp.ones(()), "columns": np.array([1, 3]), "activation": jax.nn.relu, "power": 2, "nothing": None,
        "key": jax.random.key(3),
    }  # fmt: skip
    model = JaxModel(parameters, scaled)
    assert model.layout.size == 1
    assert list(model.constants()) == ["columns"]
    assert model.tree()["activation"] is jax.nn.relu
    first, _ = model.loss_and_gradient(BATCH)
    model.load_constants({"columns": np.array([5, 7])})
    assert list(model.tree()["columns"]) == [5, 7]
    assert model.loss_and_gradient(BATCH)[0] != first
    columns = np.square(BATCH.inputs[:, [1, 3]]).mean() - np.square(BATCH.inputs[:, [5, 7]]).mean()
    assert first - model.loss_and_gradient(BATCH)[0] == pytest.approx(columns, abs=1e-6)


def test_dropout_follows_from_seed_and_batch_and_is_off_in_tests():
    models = [JaxModel(mlp(), loss_with_dropout, has_aux=True, seed=seed) for seed in (3, 3, 4)]
    losses = [model.loss_and_gradient(BATCH)[0] for model in models]
    assert losses[0] == losses[1] != losses[2]
    assert models[0].loss_and_gradient(BATCH._replace(number=5))[0] != losses[0]
    assert models[0].loss_and_gradient(BATCH)[0] == losses[0]
    assert models[0].evaluate(BATCH)[:2] == JaxModel(mlp(), loss, has_aux=True).evaluate(BATCH)[:2]


def test_evaluation_counts_correct_predictions():
    values = np.asarray(outputs(mlp(), BATCH.inputs))
    right = int((values.argmax(1) == BATCH.targets).sum())
    expected = float(cross_entropy(values, BATCH.targets)) * 13
    total, correct = JaxModel(mlp(), loss, has_aux=True).evaluate(BATCH)[:2]
    assert (total, correct) == (pytest.approx(expected, rel=1e-6), right)
    assert np.isnan(JaxModel(mlp(), plain).evaluate(BATCH)[1])


def squares(parameters, batch):
    values = outputs(parameters, batch[0])
    return jnp.mean((values - batch[1]) ** 2), values


def test_regression_has_no_accuracy():
    batch = Batch(BATCH.inputs, RNG.random((13, 10)))
    assert np.isnan(JaxModel(mlp(), squares, has_aux=True).evaluate(batch)[1])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", [2, 3, 13, 20])
def test_micro_batches_sum_to_the_batch(count):
    whole, cut = (JaxModel(mlp(dtype=np.float64), plain, micro_batches=k) for k in (1, count))
    expected_loss, expected = whole.loss_and_gradient(BATCH)
    total, gradient = cut.loss_and_gradient(BATCH)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-14)
    assert total == pytest.approx(expected_loss, rel=1e-12)


@pytest.mark.usefixtures("float64")
def test_terms_of_a_loss():
    def terms(parameters, batch):
        found = plain(parameters, batch)
        return {"data": found, "double": 2 * found}

    whole, apart = (
        JaxModel(mlp(dtype=np.float64), plain),
        JaxModel(mlp(dtype=np.float64), terms, loss_weights={"double": 0.25}),
    )
    loss, gradient = apart.loss_and_gradient(BATCH)
    assert loss == pytest.approx(1.5 * whole.loss_and_gradient(BATCH)[0], rel=1e-12)
    np.testing.assert_allclose(gradient, 1.5 * whole.loss_and_gradient(BATCH)[1], rtol=1e-12)
    found = apart.evaluate(BATCH)
    assert apart.terms == ("data", "double")
    assert list(found.terms) == pytest.approx([found.loss / 1.5, found.loss / 0.75], rel=1e-12)
    with pytest.raises(ModelError, match="loss_weights: doubel: the loss has no such term, did you mean 'double'"):
        JaxModel(mlp(), terms, loss_weights={"doubel": 1}).loss_and_gradient(BATCH)


def test_inputs_may_be_any_pytree():
    def named(parameters, batch):
        return plain(parameters, (batch[0]["one"] + batch[0]["others"][0], batch[1]))

    half = BATCH.inputs / 2
    batch = Batch({"one": half, "others": [half]}, BATCH.targets)
    expected = JaxModel(mlp(), plain).loss_and_gradient(BATCH)[0]
    assert JaxModel(mlp(), named).loss_and_gradient(batch)[0] == pytest.approx(expected, rel=1e-6)


def test_a_factory_may_return_one():
    config = from_dict({"model": {"factory": "own:model"}, "data": {"source": "digits"}})
    model = JaxModel(mlp(), plain)
    assert own_model(model, config) is model
    with pytest.raises(UsageError, match=r"model.loss: is for a torch.nn.Module, found a JaxModel"):
        own_model(model, config, "cross_entropy")
    with pytest.raises(UsageError, match=r"found a dict; of parameters and a loss of JAX, make a mpidl.jax.JaxModel"):
        own_model(mlp(), config, plain)


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({}, "no float array among the parameters, expected at least one to train"),
        ({"steps": np.arange(3), "rate": 0.5}, "no float array among the parameters"),
        ({"w": jnp.zeros(3, jnp.bfloat16)}, "parameter w is bfloat16, expected float32 or float64"),
        ({"w": jnp.zeros(3, jnp.complex64)}, "parameter w is complex64, expected float32 or float64"),
        ({"a": {"b": jnp.zeros(2)}, "a.b": jnp.zeros(2)}, "two parameters are named a.b, expected distinct names"),
    ],
)
def test_parameters_that_cant_be_trained(parameters, found):
    with pytest.raises(UsageError, match=f"^model: plain: {found}"):
        JaxModel(parameters, plain)


@pytest.mark.usefixtures("float64")
def test_dtypes_are_not_mixed():
    with pytest.raises(UsageError, match=r"model: plain: parameter w is float64, expected float32 as b"):
        JaxModel({"b": np.zeros(2, np.float32), "w": np.zeros(2)}, plain)


def test_a_loss_is_a_function():
    with pytest.raises(UsageError, match=r"model: loss: found a str, expected a function of .parameters, batch."):
        JaxModel(mlp(), "cross_entropy")


def none(parameters, batch):
    return outputs(parameters, batch[0])


def integer(parameters, batch):
    return jnp.argmax(outputs(parameters, batch[0])).sum()


def raising(parameters, batch):
    return plain({"layers": parameters["layers"][::-1]}, batch)


def several_lines(parameters, batch):
    if plain(parameters, batch) > 0:
        return 0.0
    return plain(parameters, batch)


def several_arguments(parameters, inputs, targets):
    return plain(parameters, (inputs, targets))


@pytest.mark.parametrize(
    ("function", "has_aux", "found"),
    [
        (none, False, r"the loss is float32 of shape \(13, 10\), expected a float scalar, the mean$"),
        (loss, False, r"the loss is a tuple, expected a float scalar, the mean; has_aux = True if"),
        (plain, True, r"returned float32 of shape \(\), expected the pair \(loss, outputs\)"),
        (integer, False, r"the loss is int32 of shape \(\), expected a float"),
        (raising, False, r"raised TypeError: dot_general requires .*\(MPIDL_DEBUG=1 shows its traceback\)"),
        (several_lines, False, r"raised TracerBoolConversionError: Attempted boolean conversion of traced array"),
        (several_arguments, False, "raised TypeError: several_arguments.. missing 1 required positional argument"),
    ],
)
def test_what_goes_wrong_in_a_batch_is_one_line(function, has_aux, found):
    model = JaxModel(mlp(), function, has_aux=has_aux)
    with pytest.raises(ModelError) as error:
        model.loss_and_gradient(BATCH)
    assert re.search(f"^model: {function.__name__}:? {found}", str(error.value))  # without the notes of JAX
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=found.rstrip("$")):
        model.rehearse(BATCH)


def test_without_jax_one_line_says_what_to_install():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "import mpidl\n"
        "from mpidl.errors import UsageError\n"
        "try:\n    import mpidl.jax\n"
        "except UsageError as error:\n    print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "mpidl.jax: JAX isn't installed: pip install 'mpidl[jax]'\n"


@pytest.mark.parametrize("ranks", [1, 2])
def test_threads_are_the_ranks_share_of_the_cores(ranks, monkeypatch):
    for name in ("OMP_NUM_THREADS", "PJRT_NPROC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("RANK", 0), ("SIZE", ranks), ("LOCAL_SIZE", ranks)):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    code = (
        "import mpidl.jax, jax.numpy, pathlib\n"
        "jax.numpy.ones(3).block_until_ready()\n"
        "print([each.read_text().strip() for each in pathlib.Path('/proc/self/task').glob('*/comm')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.count("XLAEigen") == max(1, len(os.sched_getaffinity(0)) // ranks)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.rst"


def test_examples_of_the_manual(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 10
    assert not result.failed
