"""Distributions of durations."""

import numpy as np
import pytest

from mpidl.engines.virtual.times import Constant, Death, Exponential, Jitter, Uniform, parse
from mpidl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.017", Constant(0.017)),
        ("constant:2", Constant(2.0)),
        ("jitter:0.1:0.25", Jitter(0.1, 0.25)),
        ("uniform:1:2", Uniform(1.0, 2.0)),
        ("exponential:3", Exponential(3.0)),
    ],
)
def test_a_text_names_a_distribution(text, expected):
    assert parse(text, "virtual.compute") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "gamma:3", "1:2", "nan", "inf", "-1", "constant", "constant:-1", "constant:nan", "exponential:-1"),
        *("uniform:2:1", "uniform:-1:1", "uniform:0:inf", "jitter:1", "jitter:1:-1", "jitter:1:nan", "jitter:1:2:3"),
    ],
)
def test_what_names_none_is_an_error_in_one_line(text):
    with pytest.raises(UsageError) as error:
        parse(text, "virtual.compute")
    assert str(error.value) == (
        f"virtual.compute: '{text}', expected SECONDS, 'constant:SECONDS', 'uniform:LOW:HIGH', 'exponential:MEAN' or "
        "'jitter:MEAN:DEVIATION'"
    )


@pytest.mark.parametrize(
    ("distribution", "mean", "deviation"),
    [
        (Constant(2.0), 2.0, 0.0),
        (Uniform(1.0, 3.0), 2.0, 1 / np.sqrt(3)),
        (Exponential(0.5), 0.5, 0.5),
        (Jitter(2.0, 0.3), 2.0, 0.6),
        (Jitter(0.0, 0.3), 0.0, 0.0),
    ],
)
def test_draws_have_the_mean_and_the_deviation(distribution, mean, deviation):
    random = np.random.default_rng(1)
    draws = np.array([distribution(random) for _ in range(20000)])
    assert draws.min() >= 0
    assert draws.mean() == pytest.approx(mean, rel=0.02)
    assert draws.std() == pytest.approx(deviation, rel=0.05, abs=1e-12)


def test_without_deviation_all_draws_are_the_mean():
    random = np.random.default_rng(1)
    assert {Jitter(0.017, 0.0)(random) for _ in range(10)} == {0.017}


def test_nobody_returns_before_death():
    with pytest.raises(UsageError, match=r"^returns: 2, expected more than at \(3\)$"):
        Death(0, at=3.0, returns=2.0)
