import subprocess
import sys
import tracemalloc
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Range, chunks
from mpidl.rules import RULES, Adagrad, Adam, Adamw, Momentum, Nesterov, Rmsprop, Rule, Sgd, TensorRule
from mpidl.rules.rule import compiled

DTYPES = (np.float32, np.float64)


# The rules in float64, written as in their sources.


def sgd(w, gradients, rate):
    for g in gradients:
        w = w - rate * g
    return w


def momentum(w, gradients, rate, mu):
    velocity = np.zeros_like(w)  # Sutskever et al., with the rate inside
    for g in gradients:
        velocity = mu * velocity - rate * g
        w = w + velocity
    return w


def nesterov(w, gradients, rate, mu):
    velocity = np.zeros_like(w)  # their parameters trail; ours are the look-ahead point, where the gradient is taken
    behind = w
    for g in gradients:
        velocity = mu * velocity - rate * g
        behind = behind + velocity
    return behind + mu * velocity


def adagrad(w, gradients, rate):
    for step, g in enumerate(gradients, 1):
        total = np.sum(np.square(gradients[:step]), axis=0)
        w = w - np.where(total > 0, rate * g / np.sqrt(np.where(total > 0, total, 1)), 0)
    return w


def rmsprop(w, gradients, rate, decay, epsilon):
    mean_square = np.zeros_like(w)
    for g in gradients:
        mean_square = decay * mean_square + (1 - decay) * g**2
        w = w - rate * g / (np.sqrt(mean_square) + epsilon)
    return w


def adam(w, gradients, rate, beta1, beta2, epsilon, weight_decay=0.0):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        corrected_m, corrected_v = m / (1 - beta1**t), v / (1 - beta2**t)
        w = w - rate * corrected_m / (np.sqrt(corrected_v) + epsilon) - rate * weight_decay * w
    return w


REFERENCES = [
    (Sgd(0.3), lambda w, g: sgd(w, g, 0.3)),
    (Momentum(0.3, 0.7), lambda w, g: momentum(w, g, 0.3, 0.7)),
    (Nesterov(0.3, 0.7), lambda w, g: nesterov(w, g, 0.3, 0.7)),
    (Adagrad(0.3), lambda w, g: adagrad(w, g, 0.3)),
    (Rmsprop(0.3, 0.8, 0.01), lambda w, g: rmsprop(w, g, 0.3, 0.8, 0.01)),
    (Adam(0.3, 0.8, 0.9, 0.01), lambda w, g: adam(w, g, 0.3, 0.8, 0.9, 0.01)),
    (Adamw(0.3, 0.8, 0.9, 0.01, 0.2), lambda w, g: adam(w, g, 0.3, 0.8, 0.9, 0.01, 0.2)),
]
BY_NAME = [pytest.param(*case, id=case[0].name) for case in REFERENCES]
EVERY_RULE = [pytest.param(case[0], id=case[0].name) for case in REFERENCES]


def gradients_of(rng, steps, size):
    """Gradients of mixed magnitude, some of them zero."""
    gradients = rng.normal(size=(steps, size)) * 10.0 ** rng.integers(-3, 3, (steps, size))
    gradients[:, ::5] = 0
    return gradients


def test_every_rule_has_a_reference():
    # Those of whole tensors have tests of their own.
    assert {type(case[0]) for case in REFERENCES} == {
        each for each in RULES.values() if not issubclass(each, TensorRule)
    }
    assert all(rule.name == name for name, rule in RULES.items())


@pytest.mark.parametrize(("rule", "reference"), BY_NAME)
@pytest.mark.parametrize(("dtype", "precision"), [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_rule_is_its_source(rule, reference, dtype, precision):
    rng = np.random.default_rng(1)
    w = rng.normal(size=1003).astype(dtype)
    gradients = gradients_of(rng, 7, w.size).astype(dtype)
    expected = reference(w.astype(np.float64), gradients.astype(np.float64))
    state = rule.init(w)
    for step, g in enumerate(gradients, 1):
        before = g.copy()
        rule.update(w, state, g, step)
        assert g.tobytes() == before.tobytes()
    assert all(vector.dtype == dtype for vector in (w, *state))
    np.testing.assert_allclose(w, expected, rtol=precision, atol=precision * np.abs(expected).max())


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_init_is_a_zero_vector_for_each_state(rule):
    parameters = np.full(7, 3, np.float32)
    state = rule.init(parameters)
    assert len(state) == len(rule.states) == len(set(rule.states))
    assert all(vector.tolist() == [0] * 7 and vector.dtype == np.float32 for vector in state)
    assert len({vector.ctypes.data for vector in (parameters, *state)}) == 1 + len(state)


@pytest.mark.parametrize("rule", EVERY_RULE)
@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_results_do_not_depend_on_chunks(rule, dtype, data):
    size = data.draw(st.integers(1, 301))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    w = rng.normal(size=size).astype(dtype)
    pieces, state, pieces_state = w.copy(), rule.init(w), rule.init(w)
    for step, g in enumerate(gradients_of(rng, 3, size).astype(dtype), 1):
        rule.update(w, state, g, step)
        for start, stop in chunks(Range(0, size), data.draw(st.integers(1, size))):
            part = slice(start, stop)
            rule.update(pieces[part], tuple(vector[part] for vector in pieces_state), g[part], step)
    assert pieces.tobytes() == w.tobytes()
    assert [vector.tobytes() for vector in pieces_state] == [vector.tobytes() for vector in state]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sgd_is_numpy_bit_for_bit(dtype):
    rng = np.random.default_rng(2)
    w = rng.normal(size=1003).astype(dtype)
    expected = w.copy()
    for step, g in enumerate(gradients_of(rng, 9, w.size).astype(dtype), 1):
        Sgd(0.1).update(w, (), g, step)
        expected -= 0.1 * g
    assert w.tobytes() == expected.tobytes()


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_rate_overrides_the_rules_own(rule):
    rng = np.random.default_rng(3)
    before, g = rng.normal(size=(2, 7))
    overridden, own, still = before.copy(), before.copy(), before.copy()
    rule.update(overridden, rule.init(before), g, 1, rate=0.05)
    replace(rule, rate=0.05).update(own, rule.init(before), g, 1)
    rule.update(still, rule.init(before), g, 1, rate=0.0)
    assert overridden.tolist() == own.tolist() != before.tolist()
    assert still.tolist() == before.tolist()


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_a_weight_is_a_factor_of_the_rate_for_one_gradient_in_all_steps_that_it_makes(rule):
    """Means of squares don't have it: what the last of three gradients moves is in proportion to its weight."""
    gradients = np.random.default_rng(3).normal(size=(3, 7))

    def moved(weight, later):
        # Decoupled decay is a part of the step by a gradient: from w = 0 there is none in the first.
        w, state = np.zeros(7), rule.init(np.zeros(7))
        for step, g in enumerate(gradients, 1):
            rule.update(w, state, g, step, weight=weight if step == 3 else 0.0)
        for step in range(4, 4 + later):
            rule.update(w, state, np.zeros(7), step, weight=0.0)
        return w, dict(zip(rule.states, state, strict=True))

    for later in (0, 5):
        (once, of_one), (twice, of_two) = moved(1.0, later), moved(2.0, later)
        assert twice == pytest.approx(2 * once, rel=1e-13)
        assert np.abs(once).min() > 0
        for name in {"velocity", "first_moment"} & of_one.keys():
            assert of_two[name] == pytest.approx(2 * of_one[name], rel=1e-13)
        for name in {"sum", "mean_square", "second_moment"} & of_one.keys():
            assert of_two[name].tobytes() == of_one[name].tobytes()


def test_a_weight_is_a_factor_of_decoupled_decay():
    w, zero = np.ones(3), np.zeros(3)
    Adamw(0.1, weight_decay=0.5).update(w, (zero.copy(), zero.copy()), zero, 1, weight=0.25)
    assert w == pytest.approx(1 - 0.1 * 0.25 * 0.5, rel=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_adagrad_has_no_epsilon_and_its_zero_by_zero_is_nothing(dtype):
    tiny = np.finfo(dtype).tiny  # its square is zero
    w = np.array([1, -0.0, 2, 3, 4], dtype)
    g = np.array([0, -0.0, tiny, 1e-15, -1e15], dtype)
    state = Adagrad(0.5).init(w)
    Adagrad(0.5).update(w, state, g, 1)
    assert w[:3].tobytes() == np.array([1, -0.0, 2], dtype).tobytes()
    np.testing.assert_allclose(w[3:], [2.5, 4.5], rtol=1e-6)
    assert state[0].tolist() == (g * g).tolist()


def test_a_gradient_that_is_not_a_number_is_not_hidden():
    for rule, _ in REFERENCES:
        w = np.ones(3, np.float32)
        rule.update(w, rule.init(w), np.array([0, np.nan, 1], np.float32), 1)
        assert np.isnan(w).tolist() == [False, True, False], rule.name


@pytest.mark.parametrize(
    "gradient", [np.zeros(6, np.float32), np.zeros(8, np.float32), np.zeros(7), np.zeros((7, 1), np.float32)]
)
def test_vectors_that_do_not_fit_are_refused(gradient):
    w = np.ones(7, np.float32)
    with pytest.raises(ValueError, match=r"adagrad: .* the parameters are float32 of shape \(7,\)"):
        Adagrad().update(w, (np.zeros(7, np.float32),), gradient, 1)
    with pytest.raises(ValueError, match="adagrad"):
        Adagrad().update(w, (gradient,), np.zeros(7, np.float32), 1)


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_update_allocates_nothing(rule):
    w, g = np.ones((2, 65537), np.float32)
    state = rule.init(w)
    rule.update(w, state, g, 1)
    tracemalloc.start()
    for step in range(2, 50):
        rule.update(w, state, g, step)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_a_second_process_compiles_nothing():
    code = """if True:
        import numpy as np
        from mpidl.rules import RULES
        from mpidl.rules.rule import compiled
        for rule in RULES.values():
            for dtype in ("float32", "float64"):
                rule().warm(dtype)
            stats = compiled(rule, np.ndarray, False, False).made.stats
            print(rule.name, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
    """
    run(code)
    assert run(code) == [word for name in RULES for word in (name, "2", "0")]


def test_importing_the_rules_imports_neither_numpy_nor_numba():
    assert run("import sys, mpidl.rules; print('numpy' in sys.modules, 'numba' in sys.modules)") == ["False"] * 2


def test_warm_is_what_the_first_update_needs():
    class Other(Sgd):
        name = "other"

    Other().warm("float32")
    dispatcher = compiled(Other, np.ndarray, False, False)
    before = len(dispatcher.made.signatures)
    Other().update(np.ones(7, np.float32), (), np.ones(7, np.float32), 1)
    assert len(dispatcher.made.signatures) == before == 1


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch):
    def refuse(self, function):
        raise RuntimeError("no locator available")

    monkeypatch.setattr("numba.core.caching.FunctionCache.__init__", refuse)

    class Uncached(Sgd):
        name = "uncached"

    w = np.ones(3)
    Uncached(0.5).update(w, (), np.ones(3), 1)
    assert w.tolist() == [0.5] * 3
    assert not compiled(Uncached, np.ndarray, False, False).made.stats.cache_path


@pytest.mark.parametrize("rule", RULES.values())
def test_hyperparameters_convert_from_a_configuration(rule):
    assert msgspec.convert({"rate": 1}, rule) == rule(1.0)
    assert isinstance(rule(), Rule)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.rate"):
        msgspec.convert({"rate": "fast"}, rule)


@pytest.mark.parametrize(
    ("rule", "key", "value"),
    [
        (Sgd, "rate", 0.0),
        (Sgd, "rate", float("nan")),
        (Momentum, "momentum", 1.0),
        (Nesterov, "momentum", -0.1),
        (Adagrad, "rate", -0.01),
        (Rmsprop, "decay", 1.0),
        (Rmsprop, "epsilon", 0.0),
        (Adam, "beta1", 1.0),
        (Adam, "beta2", -1.0),
        (Adam, "epsilon", 0.0),
        (Adamw, "weight_decay", -0.1),
    ],
)
def test_hyperparameters_out_of_range_are_refused(rule, key, value):
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{key}"):
        msgspec.convert({key: value}, rule)


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sparse_update_leaves_elements_without_gradient_alone(name, dtype):
    """This includes elements that the rule would move by momentum or decay."""
    rule, random = RULES[name](), np.random.default_rng(1)
    w = random.normal(size=37).astype(dtype)
    state = rule.init(w)
    rule.update(w, state, random.normal(size=37).astype(dtype), 1)
    gradient = np.where(np.arange(37) % 3, random.normal(size=37), 0).astype(dtype)
    dense, dense_state = w.copy(), tuple(vector.copy() for vector in state)
    before = [vector.copy() for vector in (w, *state)]
    rule.update(dense, dense_state, gradient, 2)
    rule.update(w, state, gradient, 2, sparse=True)
    for found, old, expected in zip((w, *state), before, (dense, *dense_state), strict=True):
        assert np.array_equal(found[::3], old[::3])
        touched = np.arange(37) % 3 != 0
        assert np.array_equal(found[touched], expected[touched])
