"""What another user of the node does: scripts that give up root's rights once their modules are loaded."""

import os
import subprocess
import sys

import pytest

#: A number that no user has.
OTHER = 61_234
#: Tests with two users.
TWO_USERS = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
#: Gives up root's rights. What the kernel says of this process (`/proc`) is the user's own, as after a login.
BECOME = f"""
import ctypes, os
def become():
    os.setgroups([])
    os.setresgid({OTHER}, {OTHER}, {OTHER})
    os.setresuid({OTHER}, {OTHER}, {OTHER})
    os.umask(0)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""


def start_as_another(script, *arguments):
    """Start a script, which calls ``become`` when it has imported its modules; return the process."""
    return subprocess.Popen(
        [sys.executable, "-c", BECOME + script, *map(str, arguments)],
        cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def as_another(script, *arguments):
    """Run such a script, and return what it prints."""
    process = start_as_another(script, *arguments)
    output, _ = process.communicate()
    assert process.returncode == 0
    return output
