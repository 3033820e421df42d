"""Output to closed pipes and full disks, and control characters in it."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpidl
from mpidl.launch.output import deliver, interject, say
from mpidl.report.recorder import as_json_line


def run(call, environment, redirection=""):
    """Run a program by the shell."""
    words = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", call]
    return subprocess.run(words, env=environment, capture_output=True, text=True)


UNREAD = "import os; reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 2); "


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("from mpidl.launch.output import say; say('nothing')", 0),
        ("from mpidl.launch.output import say, terminate; say('nothing', terminate)", -15),
        ("from mpidl.report.text import warn_unchanged; warn_unchanged({'pushes': 3})", 0),
    ],
)
def test_a_line_without_a_reader_is_no_error(bare_environment, line, code):
    ended = run(f"{UNREAD}{line}; print('done')", bare_environment)
    assert ended.returncode == code
    assert ended.stdout == ("" if code else "done\n")


def test_one_file_writes_what_the_package_prints():
    """It escapes what would control a terminal, and knows what to do where nothing can be written."""
    package = Path(mpidl.__file__).parent
    prints = re.compile(r"(?<!\.)\bprint\(|traceback\.print_|sys\.std(out|err)\.write|os\.write\((2|STDERR)")
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if prints.search(path.read_text())}
    # A child's answers to its parent, and errors in scripts, which are printable: they can't import this file.
    assert found == {"launch/output.py", "doctor/cuda.py", "doctor/start.py", "errors.py"}


SAY = "from mpidl.launch.output import deliver, interject, say; say('first'); interject('second'); "


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_line_that_finds_no_place_is_left_out(bare_environment, redirection):
    call = f"import warnings; {SAY}warnings.warn('a warning'); say('third'); print('done')"
    ended = run(call, bare_environment, redirection)
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1] == "done"
    assert "mpidl:" not in ended.stdout


def test_a_log_goes_on_when_there_is_space_again(bare_environment, tmp_path):
    log = tmp_path / "log"
    call = (
        f"import os; log = os.dup(2); os.dup2(os.open('/dev/full', os.O_WRONLY), 2); {SAY}os.dup2(log, 2); say('third')"
    )
    with log.open("w") as file:
        subprocess.run([sys.executable, "-c", call], env=bare_environment, stderr=file, check=True)
    assert log.read_text() == "mpidl: third\n"


@pytest.mark.parametrize(
    ("redirection", "needed", "why"),
    [
        (">/dev/full", False, "No space left on device"),
        (">/dev/full", True, "No space left on device"),
        (">&-", True, "closed"),
        (">&-", False, None),
    ],
)
def test_results_that_are_lost_are_an_error(bare_environment, redirection, needed, why):
    call = f"from mpidl.launch.output import deliver; deliver('result', needed={needed})"
    ended = run(call, bare_environment, redirection)
    assert ended.returncode == (why is not None)
    line = f"mpidl: stdout: {why}, the output is lost"
    assert ended.stderr.splitlines()[-1:] == ([line] if why else [])


def test_a_line_is_one_whatever_it_tells(capfd):
    for write in (say, interject):
        write("two\nlines \x1b[31m\x9b31m")
        assert capfd.readouterr().err == "mpidl: two lines \\x1b[31m\\x9b31m\n"
    deliver("two\nlines \x1b[31m\x9b31m \udcff\u202e")
    assert capfd.readouterr().out == "two\nlines \\x1b[31m\\x9b31m \\udcff\\u202e\n"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", "gr\\u00f6\\u00dfe \\ud83d\\ude00 a"), ("latin-1", "größe \\ud83d\\ude00 a"), ("utf-8", "größe 😀 a")],
)
def test_letters_that_the_encoding_of_stdout_lacks_are_escaped(monkeypatch, encoding, shown):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    deliver("größe 😀 a")
    deliver(as_json_line({"run_dir": "größe 😀"}))
    line, result = written.getvalue().decode(encoding).splitlines()
    assert line == shown
    assert json.loads(result) == {"run_dir": "größe 😀"}
    # A batch script keeps the bytes of a file's name.
    deliver("cd größe\n", end="", verbatim=True)
    expected = "cd größe\n".encode("latin-1" if encoding == "latin-1" else "utf-8")
    assert written.getvalue().endswith(expected)
