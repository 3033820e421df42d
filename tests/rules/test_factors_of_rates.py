"""Schedules of rates against the values of PyTorch's schedulers and optax's formula."""

import math

import pytest

from mpidl.rules import RateSchedule

#: Factors after 0, 5, 10, 20, 30 and 39 of 40 epochs of PyTorch 2.13's schedulers, stepped a thousand times an epoch. A
#: warm-up is `LinearLR` from 0, followed by the other by `SequentialLR`.
EPOCHS = (0, 5, 10, 20, 30, 39)
OF_PYTORCH = {
    "CosineAnnealingLR": (RateSchedule("cosine"), [1, 0.9619, 0.8536, 0.5, 0.1464, 0.0015]),
    "warm-up, CosineAnnealingLR": (RateSchedule("cosine", warm_up=10), [0, 0.5, 1, 0.75, 0.25, 0.0027]),
    "LinearLR": (RateSchedule("linear"), [1, 0.875, 0.75, 0.5, 0.25, 0.025]),
    "warm-up, LinearLR": (RateSchedule("linear", warm_up=4), [0, 0.9722, 0.8333, 0.5556, 0.2778, 0.0278]),
    "MultiStepLR": (RateSchedule("steps", [10, 30], 0.3), [1, 1, 0.3, 0.3, 0.09, 0.09]),
    "warm-up, MultiStepLR": (RateSchedule("steps", [10, 30], 0.3, warm_up=8), [0, 0.625, 0.3, 0.3, 0.09, 0.09]),
    "warm-up, ConstantLR": (RateSchedule(warm_up=7), [0, 0.7143, 1, 1, 1, 1]),
    "OneCycleLR": (RateSchedule("one_cycle"), [0.04, 0.3958, 0.9357, 0.8117, 0.283, 0.0031]),
    "OneCycleLR, pct_start 0.1": (
        RateSchedule("one_cycle", warm_up=4),
        [0.04, 0.9981, 0.933, 0.5868, 0.1786, 0.0019],
    ),
}


@pytest.mark.parametrize("name", OF_PYTORCH)
def test_factors_are_those_of_pytorch(name):
    schedule, expected = OF_PYTORCH[name]
    assert [schedule.at(epoch, 40) for epoch in EPOCHS] == pytest.approx(expected, abs=2e-4)
    assert max(schedule.at(epoch / 10, 40) for epoch in range(401)) == 1


def warmup_cosine(step, warm_up, length):
    """Return what optax's ``warmup_cosine_decay_schedule(0, 1, warm_up, length)`` returns."""
    if step < warm_up:
        return step / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (length - warm_up)))


@pytest.mark.parametrize("warm_up", [0, 1, 10, 39.5])
def test_cosine_after_a_warm_up_is_that_of_optax(warm_up):
    schedule = RateSchedule("cosine", warm_up=warm_up)
    for epoch in (0, 0.5, 1, 10, 20, 39.75, 40):
        assert schedule.at(epoch, 40) == pytest.approx(warmup_cosine(epoch, warm_up, 40), abs=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_warm_up_of_the_whole_run_or_more_only_rises(schedule):
    assert RateSchedule(schedule, warm_up=80).at(20, 40) == pytest.approx(0.25)
    assert RateSchedule(schedule, warm_up=40).at(39, 40) == pytest.approx(39 / 40)


@pytest.mark.parametrize(("schedule", "last"), [("linear", 0.0), ("cosine", 0.0), ("one_cycle", 1 / 25e4)])
@pytest.mark.parametrize("warm_up", [0.0, 2.0])
@pytest.mark.parametrize("past", [0.0, 0.5, 2.5, 4.0])
def test_a_schedule_stays_at_its_last_factor(schedule, last, warm_up, past):
    assert RateSchedule(schedule, warm_up=warm_up).at(4.0 + past, 4.0) == pytest.approx(last, abs=1e-12)
