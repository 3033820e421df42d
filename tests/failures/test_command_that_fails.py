"""A command that fails on one rank only, while others wait for that: the job ends."""

import subprocess

from mpidl.launch.mpiexec import command

SOURCE = """
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


def test_the_job_ends(bare_environment, tmp_path):
    (tmp_path / "failing.py").write_text(SOURCE)
    words, environment = command(3, [str(tmp_path / "failing.py")])
    ended = subprocess.run(words, env={**environment, **bare_environment}, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert ended.stderr.count("mpidl: rank 1: KeyError: 'what' (MPIDL_DEBUG=1 shows where)\n") == 1
