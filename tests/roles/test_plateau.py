"""Rates that fall on a plateau, whatever evaluations bring."""

import math

from mpidl.job.goal import Goal
from mpidl.roles.monitor import Plateau


def test_a_figure_that_is_no_number_at_first_hides_no_later_one():
    plateau = Plateau(Goal(), patience=1)
    figures = [math.nan, 0.75, 0.5, 0.25, math.inf, 0.25, 0.125]
    assert [plateau.evaluated(figure, epoch) for epoch, figure in enumerate(figures)] == [
        False, False, False, False, False, True, False,
    ]  # fmt: skip
    assert plateau.state() == {"reductions": 1, "best": 0.125, "since": 6}
