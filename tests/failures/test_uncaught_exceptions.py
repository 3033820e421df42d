"""A rank of a script that raises before, between or after its trainings ends the job; no other rank waits for it."""

import sys
from functools import partial
from pathlib import Path

import pytest

#: Trains twice; one rank fails at a moment.
SCRIPT = """
import os
import sys

import mpidl

rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))
moment = sys.argv[1]

def write(name, results):
    raise ValueError(f"{name}: no {results}")

def at(present):
    if present == moment and rank == sys.argv[2]:
        if sys.argv[3] == "own":
            write("results", "space")
        elif sys.argv[3] == "mpidl":
            mpidl.evaluate("nowhere")
        else:
            raise KeyboardInterrupt

def fold():
    mpidl.train(mpidl.Network([mpidl.Dense(10)], (8, 8)), mpidl.Digits(), steps=1)

at("before")
fold()
at("between")
fold()
at("after")
print("done")
"""


def words_of(library):
    """Return the command that starts the script on three ranks of another MPI library; skip if that isn't installed."""
    programs = Path(__file__).parents[2] / f".venv-{library}" / "bin"
    if not programs.exists():
        pytest.skip(f"no {programs}")
    return [programs / "mpiexec", "-n", "3", programs / "python", "script.py"]


@pytest.fixture
def run(script):
    """Run the script on three ranks, or by given words; one rank raises `what` at a moment."""
    return partial(script, SCRIPT, ranks=3)


@pytest.fixture
def exits(script):
    return partial(script, EXITS, ranks=3)


TRACE = """\
    write("results", "space")
  File "{script}", line 11, in write
    raise ValueError(f"{{name}}: no {{results}}")
ValueError: results: no space
"""


def assert_whole(ended, tmp_path, rank):
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback (most recent call last):\n") == 1
    trace = ended.stderr[ended.stderr.index("Traceback") :]
    line = f"mpidl: rank {rank} raised ValueError, which ends the job\n"
    assert TRACE.format(script=tmp_path / "script.py") + line in trace
    assert "site-packages" not in trace


@pytest.mark.parametrize(
    ("moment", "rank"),
    [("between", 0), *(pytest.param(*each, marks=pytest.mark.long) for each in (("before", 2), ("after", 1)))],
)
def test_the_traceback_is_the_users_own_and_whole(run, tmp_path, moment, rank):
    assert_whole(run(moment, rank, "own"), tmp_path, rank)


@pytest.mark.long
@pytest.mark.parametrize("library", ["mpich", "impi"])
def test_other_ranks_do_not_wait_in_the_start_of_other_libraries(run, tmp_path, library):
    assert_whole(run("before", 1, "own", words=words_of(library)), tmp_path, 1)


def test_an_error_of_one_rank_is_one_line(run):
    ended = run("between", 1, "mpidl")
    assert ended.returncode == 2
    assert "\nmpidl: rank 1: nowhere: no directory" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.long
def test_ctrl_c_on_one_rank(run):
    ended = run("between", 1, "interrupt")
    assert ended.returncode == 130
    assert "\nKeyboardInterrupt\nmpidl: rank 1 raised KeyboardInterrupt, which ends the job\n" in ended.stderr


def test_a_process_alone_ends_as_ever(run, tmp_path):
    ended = run("before", 0, "own", words=[sys.executable, "script.py"])
    assert ended.returncode == 1
    assert ended.stderr.startswith("Traceback (most recent call last):\n")
    assert ended.stderr.endswith(TRACE.format(script=tmp_path / "script.py"))


#: Of three ranks, those in the first argument exit; the others train or, if the third one is "end", end.
EXITS = """
import os
import sys

import mpidl
import mpidl.runs.process

mpidl.runs.process.FOR_OTHERS = 0.5
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))
try:
    sys.exit(9)
except SystemExit as caught:
    assert caught.code == 9
if sys.argv[3] != "early":
    from mpi4py import MPI
if rank in sys.argv[1]:
    print("exits", flush=True)
    eval(sys.argv[2])
if sys.argv[3] != "end":
    mpidl.train(mpidl.Network([mpidl.Dense(10)], (8, 8)), mpidl.Digits(), steps=1)
"""


@pytest.mark.parametrize(
    ("ranks", "call", "code"),
    [
        ("0", "sys.exit(3)", 3),
        pytest.param("1", "exit('no results')", 1, marks=pytest.mark.long),
        pytest.param("12", "sys.exit(True)", 1, marks=pytest.mark.long),
    ],
)
def test_no_rank_waits_for_one_that_exits(exits, ranks, call, code):
    ended = exits(ranks, call, "train")
    assert ended.returncode == code, ended.stderr
    assert f"mpidl: rank {ranks[0]} exited with status {code}, which ends the job\n" in ended.stderr


@pytest.mark.parametrize(
    ("ranks", "call", "code"),
    [
        ("012", "sys.exit(int(rank) + 3)", {3, 4, 5}),
        pytest.param("012", "sys.exit(4)", {4}, marks=pytest.mark.long),
        pytest.param("1", "sys.exit(0)", {0}, marks=pytest.mark.long),
        pytest.param("02", "sys.exit()", {0}, marks=pytest.mark.long),
    ],
)
def test_ranks_that_all_exit_end_by_themselves(exits, ranks, call, code):
    ended = exits(ranks, call, "end")
    assert ended.returncode in code
    assert ended.stdout.count("exits") == len(ranks)
    assert "mpidl: " not in ended.stderr
    assert "ABORT" not in ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("library", ["mpich", "impi"])
@pytest.mark.parametrize("moment", ["train", "early"])
def test_ranks_of_other_libraries_exit(exits, library, moment):
    ended = exits("0", "sys.exit(3)", moment, words=words_of(library))
    assert ended.returncode == 3
    assert "mpidl: rank 0 exited with status 3, which ends the job\n" in ended.stderr
