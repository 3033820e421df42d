"""The compiled forms agree with the scalar form: their sources and their results."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy import sqrt

from mpidl.rules import RULES, Adagrad, Rule, Sgd
from mpidl.rules.scalar import kernel, kernel_source, loop, loop_source, read

DTYPES = (np.float32, np.float64)


@pytest.mark.parametrize("rule", RULES.values())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("decaying", [False, True])
def test_device_kernel_and_cpu_loop_are_equal_bit_for_bit(cupy, rule, dtype, decaying):
    rng = np.random.default_rng(4)
    w = rng.normal(size=1003).astype(dtype)
    apply_on_device, apply = kernel(rule, decaying), loop(rule, decaying=decaying)
    vectors = [w, *rule().init(w)]
    device_vectors = [cupy.asarray(vector) for vector in vectors]
    for step in range(1, 6):
        # Not so small that a square of float32 is subnormal, which a GPU takes for zero.
        g = (rng.normal(size=w.size) * 10.0 ** rng.integers(-15, 10, w.size)).astype(dtype)
        g[::7] = 0
        coefficients = (*rule().coefficients(step, 0.1), *([0.3] * decaying))
        apply(*vectors, g, *coefficients)
        apply_on_device(*device_vectors, cupy.asarray(g), *coefficients)
    assert np.isfinite(w).all()
    assert [vector.get().tobytes() for vector in device_vectors] == [vector.tobytes() for vector in vectors]


def test_device_source():
    assert kernel_source(Adagrad) == (
        "T g, T rate",
        "T w, T sum",
        "sum = (sum + (g * g));\n"
        "T new_w = (w - ((sum == T(0.0)) ? T(0.0) : ((rate * g) / sqrt(sum))));\n"
        "T new_sum = sum;\n"
        "w = new_w;\n"
        "sum = new_sum;",
    )


def test_cpu_source():
    assert loop_source(Sgd) == (
        "def sgd(w_vector, g_vector, rate):\n"
        "    real = w_vector.dtype.type\n"
        "    rate = real(rate)\n"
        "    for i in range(w_vector.size):\n"
        "        w = w_vector[i]\n"
        "        g = g_vector[i]\n"
        "        w_vector[i] = w - rate * g\n"
    )


def test_sources_with_weight_decay():
    assert loop_source(Sgd, decaying=True).splitlines()[-3:] == [
        "        g = g_vector[i]",
        "        decaying_g = g + weight_decay * w",
        "        w_vector[i] = w - rate * decaying_g",
    ]
    assert kernel_source(Sgd, decaying=True) == (
        "T g, T rate, T weight_decay",
        "T w",
        "T decaying_g = (g + (weight_decay * w));\nT new_w = (w - (rate * decaying_g));\nw = new_w;",
    )


@dataclass(frozen=True)
class Odd(Rule):
    """A rule with unusual names, constants, every operator, and results that read each other."""

    name = "odd"
    states = ("first", "second")
    rate: float = 0.1

    def coefficients(self, step, rate, weight):
        return (rate,)

    @staticmethod
    def scalar(w, first, second, g, rate):
        half = g / 2
        larger = first if half >= first else -half
        larger = larger if larger != 0.25 else 1.5
        w = w - 0.1 * larger
        larger = sqrt(larger * larger) if first > -1 else w
        larger = larger if second < 3 else 7
        return (w if w <= 2 else rate), second + larger, first + 0.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_construct_is_translated_in_the_vectors_precision(cupy, dtype):
    rng = np.random.default_rng(5)
    vectors = (rng.integers(-16, 17, (4, 1003)) / 4).astype(dtype)  # so that equality occurs
    by_element = np.array([Odd.scalar(*elements, dtype(0.1)) for elements in vectors.T], dtype).T
    on_device = [cupy.asarray(vector) for vector in vectors]
    loop(Odd)(*vectors, 0.1)
    kernel(Odd)(*on_device, 0.1)
    assert vectors[:3].tolist() == [vector.get().tolist() for vector in on_device[:3]] == by_element.tolist()


def test_a_devices_vectors_are_updated_by_the_kernel_and_never_sparsely(cupy, monkeypatch):
    monkeypatch.delattr("mpidl.rules.rule.loop")
    vectors = [cupy.zeros(3) for _ in range(4)]
    w, first, second, g = vectors
    Odd().update(w, (first, second), g, 1)
    assert second.get().tolist() == [0.1] * 3
    with pytest.raises(ValueError, match=r"^odd: sparse updates are for NumPy vectors, found \w+$"):
        Odd().update(w, (first, second), g, 1, sparse=True)


def rule_of(form):
    return type("Wrong", (Rule,), {"name": "wrong", "states": (), "scalar": staticmethod(form)})


def loops(w, g, rate):
    for _ in range(3):
        w = w - rate * g
    return (w,)


def gives_no_tuple(w, g, rate):
    return w - rate * g


def gives_too_much(w, g, rate):
    return w - rate * g, g


def changes_the_gradient(w, g, rate):
    g = rate * g
    return (w - g,)


def returns_nothing(w, g, rate):
    w = w - rate * g


def returns_early(w, g, rate):
    return (w,)
    return (w - rate * g,)


@pytest.mark.parametrize(
    "form", [loops, gives_no_tuple, gives_too_much, changes_the_gradient, returns_nothing, returns_early]
)
def test_forms_that_cannot_be_read(form):
    with pytest.raises(TypeError, match="wrong: the scalar form must be assignments"):
        read(rule_of(form))


def raises_to_a_power(w, g, rate):
    return (w - rate * g**2,)


def test_what_has_no_cuda_translation():
    with pytest.raises(TypeError, match=r"'g \*\* 2' has no CUDA translation"):
        kernel_source(rule_of(raises_to_a_power))
