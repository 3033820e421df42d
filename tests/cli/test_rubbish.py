"""What is wrong in a configuration is one line: no traceback, no hang, no internal error. `make rubbish` tries more."""

from itertools import islice

import pytest
from rubbish_cases import KINDS, cases
from rubbish_outcomes import attempt, judge


# On a bare machine the cases compile all layers, too.
@pytest.mark.parametrize("seed", range(4))
def test_bad_configurations_are_one_line(seed, tmp_path):
    outcomes = [attempt(case, tmp_path / str(number)) for number, case in enumerate(islice(cases(seed, KINDS), 30))]
    assert [outcome for outcome in outcomes if outcome.problem] == []
    assert sum(outcome.code == 2 for outcome in outcomes) > 10


@pytest.mark.parametrize(
    ("code", "stderr", "left", "problem"),
    [
        (2, "mpidl: run.seed: expected int >= 0, found -1\n", False, ""),
        (75, "  10:00:00 saved\n", True, ""),
        (None, "", True, ""),
        (None, "", False, "hang"),
        (1, "Traceback (most recent call last):\n", False, "traceback"),
        (1, "mpidl: KeyError: 3 (MPIDL_DEBUG=1 shows where)\n", False, "internal error"),
        (139, "", False, "exit code 139"),
        (2, "", False, "0 lines for people"),
        (2, "mpidl: a\nmpidl: a\n", False, "2 lines for people"),
        (2, "x.py:3: RuntimeWarning: overflow\nmpidl: a\n", False, "a warning of a library"),
        (2, "mpidl: a\n", True, "a directory of a refused run"),
        (2, "mpidl: \x1b[31m\n", False, "a line that rules the terminal"),
    ],
)
def test_what_counts_as_wrong(code, stderr, left, problem):
    assert judge([], code, stderr, left).problem == problem
