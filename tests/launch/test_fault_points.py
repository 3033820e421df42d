"""``MPIDL_DIE``: a process dies at a named point, and only there."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mpidl.errors import UsageError
from mpidl.launch import fault_points

SOURCES = Path(fault_points.__file__).parents[1]


def named():
    """Return the names of the points that the sources pass."""
    calls = [node for path in SOURCES.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    calls = [each for each in calls if isinstance(each, ast.Call) and ast.unparse(each.func) == "fault_point"]
    return [each.args[0].value for each in calls]


def test_every_point_that_can_be_named_is_passed_somewhere_and_no_other():
    assert set(named()) == set(fault_points.POINTS)


def test_without_the_variable_nothing_happens_and_for_another_rank_neither():
    for variables in ({}, {"MPIDL_DIE": ""}, {"MPIDL_DIE": "1:trained:1", "PMI_RANK": "2", "PMI_SIZE": "3"}):
        fault_points.passing(variables)("trained")


def test_a_process_dies_at_the_point_when_it_passes_it_for_that_time():
    program = (
        "from mpidl.launch.fault_points import fault_point\n"
        "for count in range(3):\n"
        "    fault_point('trained')\n"
        "    print(count, flush=True)\n"
        "    fault_point('evaluated')\n"
    )
    words, variables = [sys.executable, "-c", program], os.environ | {"MPIDL_DIE": "1:looked:1,0:trained:3"}
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "0\n1\n"), done.stderr


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1:traind:1", "no point 'traind', did you mean 'trained'?"),
        ("1:x:1", "; known: "),
        ("1:trained", "expected RANK:POINT:COUNT"),
        ("1:trained:0", "expected RANK:POINT:COUNT"),
        ("one:trained:1", "expected RANK:POINT:COUNT"),
        ("0:trained:1,-1:looked:1", "expected RANK:POINT:COUNT"),
    ],
)
def test_what_is_no_point_is_an_error_that_names_those_that_are(value, expected):
    with pytest.raises(UsageError, match=r"^MPIDL_DIE") as caught:
        fault_points.passing({"MPIDL_DIE": value})
    assert expected in str(caught.value)
