"""What a user got wrong in a script: one line, on several ranks and in one process."""

import sys
from operator import methodcaller

import pytest

from mpidl.errors import MpidlError, UsageError, as_line, raised

SOURCE = """
import mpidl
from mpi4py import MPI

mpidl.train(mpidl.Network([mpidl.Dense(10)], (8, 8)), mpidl.Digits(), {argument})
"""


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("steps=-1", "mpidl: run.steps: expected int >= 1, found -1\n"),
        ("steps=1 - MPI.COMM_WORLD.rank", "mpidl: run.steps: expected int >= 1, found 0 (rank 1)\n"),
        pytest.param(
            "rule=mpidl.Adagrad(-1)",
            "mpidl: rank 0: Adagrad.rate: expected float > 0, found -1\n",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_error_is_one_line(script, argument, line):
    ended = script(SOURCE.format(argument=argument), ranks=2)
    assert ended.returncode == 2
    assert ended.stderr.count("mpidl: ") == ended.stderr.count(line) == 1
    assert "Traceback" not in ended.stderr


def test_a_script_in_one_process_ends_with_the_line(script):
    ended = script("import mpidl\nmpidl.Adagrad(-1)")
    assert ended.returncode == 2
    assert ended.stderr.startswith("mpidl: Adagrad.rate: expected float > 0, found -1")
    assert ended.stderr.count("\n") == 1


@pytest.fixture
def report(monkeypatch, capsys):
    """Raises what a script would, and returns its end and what it shows, line by line."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)

    def reported(script):
        code = 1
        try:
            script()
        except Exception as error:
            try:
                sys.excepthook(type(error), error, error.__traceback__)
            except SystemExit as end:
                code = end.code
        return code, capsys.readouterr().err.splitlines()

    return reported


def refuse(cause=None):
    raise UsageError("data.batch: 0, expected 1 or more") from cause


def convert():
    """Raise the line for an exception of the user's own, as a callback's."""
    try:
        raise KeyError("temperature")
    except KeyError as error:
        refuse(error)


def while_handling():
    try:
        raise KeyError("temperature")
    except KeyError:
        raise UsageError("data.batch: 0, expected 1 or more")  # noqa: B904


def test_a_line_of_another_line_is_one_line(report):
    assert report(lambda: refuse(MpidlError("no such key"))) == (2, ["mpidl: data.batch: 0, expected 1 or more"])


@pytest.mark.parametrize("script", [convert, while_handling])
def test_exceptions_of_the_users_own_are_shown(report, script):
    code, lines = report(script)
    assert code == 1
    assert "KeyError: 'temperature'" in lines
    assert lines[0] == "Traceback (most recent call last):"


def of_a_module():
    try:
        raise KeyError("temperature")
    except KeyError as error:
        try:
            raise MpidlError(f"model: Net {raised(error)}: in the first batch") from error
        except MpidlError as line:
            raise UsageError(str(line)) from line


@pytest.mark.parametrize("debug", ["", "1"])
def test_no_advice_on_a_traceback_stands_below_one(report, monkeypatch, debug):
    monkeypatch.setenv("MPIDL_DEBUG", debug)
    _, lines = report(of_a_module)
    assert lines[-1].endswith("UsageError: model: Net raised KeyError: 'temperature': in the first batch")
    assert "MPIDL_DEBUG" not in "".join(lines)


def test_the_one_line_of_a_command_has_advice(monkeypatch):
    line = "KeyError: 'temperature'"
    assert str(as_line(KeyError("temperature"))) == f"{line} (MPIDL_DEBUG=1 shows where)"
    monkeypatch.setenv("MPIDL_DEBUG", "1")
    assert str(as_line(KeyError("temperature"))) == line


def test_a_traceback_on_request(report, monkeypatch):
    monkeypatch.setenv("MPIDL_DEBUG", "1")
    code, lines = report(refuse)
    assert (code, lines[0]) == (1, "Traceback (most recent call last):")


def test_an_interactive_session_stays(report, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert report(refuse) == (1, ["mpidl: data.batch: 0, expected 1 or more"])


def test_hooks_of_others_stay(report, monkeypatch):
    found = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: found.append(str(error)))
    assert report(refuse) == (1, [])
    assert found == ["data.batch: 0, expected 1 or more"]


def test_lines_of_notebooks():
    ipython = methodcaller("_render_traceback_")
    assert ipython(UsageError("no data")) == ["mpidl: no data"]
    with pytest.raises(UsageError) as caught:
        convert()
    assert not hasattr(caught.value, "_render_traceback_")
    with pytest.raises(UsageError) as caught:
        of_a_module()
    assert not hasattr(caught.value, "_render_traceback_")
    assert str(caught.value) == "model: Net raised KeyError: 'temperature': in the first batch"


#: A command that fails on one rank only, while others wait for that.
FAILS_ON_ONE = """
import sys
from mpidl.cli import commands, main
from mpidl.runs.agreement import ranks

def fail(arguments):
    rank, gather = ranks()
    if rank == 1:
        raise KeyError("what")
    gather(0)

commands.run_evaluate = fail
sys.exit(main(["evaluate", "runs/x"]))
"""


def test_a_command_that_fails_on_one_rank_ends_the_job(script):
    ended = script(FAILS_ON_ONE, ranks=3)
    assert ended.returncode == 1
    assert ended.stderr.count("mpidl: rank 1: KeyError: 'what' (MPIDL_DEBUG=1 shows where)\n") == 1
