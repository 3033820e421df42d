"""What a supervisor decides when a loss is not finite."""

import math
from dataclasses import replace

import pytest
from supervised import (
    LAST_TEST,
    SAVE,
    evaluated,
    iterated,
    looked,
    saved,
    script,
    supervisor,
    trained,
)

from mpidl.errors import NOT_FINITE
from mpidl.roles.events import Diverged, Fail, Finish, Iterated, Saved, Signalled
from mpidl.roles.supervision import NO_OBJECTIVE

NAN = math.nan
DIVERGED = [
    (Diverged(3, 17, math.inf), Fail(f"the loss is inf in portion 17: {NOT_FINITE}", 3)),
    (evaluated(1.0, 0.1, NAN), Fail(f"the test loss is nan: {NOT_FINITE}")),
]


@pytest.mark.parametrize(("event", "failure"), DIVERGED)
def test_a_loss_that_is_not_finite_ends_the_run_once(event, failure):
    script(
        supervisor(resumed=True),
        (looked(10.0, 6), [SAVE]),
        (event, [failure]),
        (event, []),
        (Saved(12.0, 6), []),
        (Signalled(), []),
        (trained(41.0, 9), []),
    )


def test_an_objective_that_is_not_finite_ends_the_run():
    event = iterated(1.0, 4, 60)
    broken = Iterated(event.totals, replace(event.iteration, objective=NAN))
    script(
        supervisor(resumed=True, coordinated=True),
        (iterated(1.0, 3, 30), []),
        (broken, [Fail(f"the objective is nan after iteration 4: {NO_OBJECTIVE}")]),
    )


@pytest.mark.parametrize("event", [event for event, _ in DIVERGED])
def test_a_run_that_may_go_on_does(event):
    script(
        supervisor(resumed=True, terminate_on_nan=False),
        (event, []),
        (trained(1.0, 40), [SAVE]),
        (Saved(2.0, 40), [saved(40), LAST_TEST]),
        (evaluated(1.0, NAN, NAN), [Finish(False, None)]),
    )
