"""What a user got wrong in a script that a launcher has started on several ranks."""

import subprocess

import pytest

from mpidl.launch.mpiexec import command

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
        ("rule=3", "mpidl: rule: expected one such as mpidl.Adagrad(), or its name, found 3\n"),
        ("rule=mpidl.Adagrad(-1)", "mpidl: rank 0: Adagrad.rate: expected float > 0, found -1\n"),
    ],
)
def test_an_error_is_one_line(bare_environment, tmp_path, argument, line):
    (tmp_path / "script.py").write_text(SOURCE.format(argument=argument))
    words, environment = command(2, [str(tmp_path / "script.py")])
    ended = subprocess.run(
        words, cwd=tmp_path, env={**environment, **bare_environment}, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert ended.stderr.count("mpidl: ") == ended.stderr.count(line) == 1
    assert "Traceback" not in ended.stderr
