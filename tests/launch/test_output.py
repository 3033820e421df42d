"""Lines on stderr that nobody reads."""

import subprocess
import sys

import pytest

from mpidl.launch.output import say

UNREAD = "import os; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 2); "


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("from mpidl.launch.output import say; say('nothing')", 0),
        ("from mpidl.launch.output import say, terminate; say('nothing', terminate)", -15),
        ("from mpidl.report.text import warn_unchanged; warn_unchanged({'pushes': 3})", 0),
    ],
)
def test_a_line_that_nobody_reads_is_no_error(bare_environment, line, code):
    ended = subprocess.run(
        [sys.executable, "-c", f"{UNREAD}{line}; print('done')"], env=bare_environment, capture_output=True, text=True
    )
    assert ended.returncode == code
    assert ended.stdout == ("" if code else "done\n")


def test_a_line_is_one_whatever_it_tells(capsys):
    say("two\nlines \x1b[31m")
    assert capsys.readouterr().err == "mpidl: two lines \\x1b[31m\n"
