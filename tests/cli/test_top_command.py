"""The command that watches a run."""

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios

import pytest

from mpidl.top import screen


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "runs" / "digits"
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text("[run]\nepochs = 1\n")
    return directory


def test_without_a_terminal_it_is_a_text(run, mpidl_here):
    pytest.importorskip("rich")
    done = mpidl_here("top")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("runs/digits  killed")
    assert "\x1b" not in done.stdout
    assert mpidl_here("top", run).returncode == 0


def test_what_is_missing(run, mpidl_here, monkeypatch):
    done = mpidl_here("top", "runs/no")
    assert done.returncode == 2
    assert "runs/no: no directory, expected the directory of a run" in done.stderr
    monkeypatch.setitem(sys.modules, "rich", None)
    done = mpidl_here("top", run)
    assert done.returncode == 2
    assert "rich is not installed, expected `pip install 'mpidl[top]'`" in done.stderr


class Terminal:
    """A terminal on which a shell runs words, one after another."""

    def __init__(self, columns, words, **environment):
        self._own, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.modes = termios.tcgetattr(other)
        kept = os.environ | {"TERM": "xterm", "COLUMNS": "", "LINES": ""} | environment
        self._shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "-mc", words], stdin=other, stdout=other, stderr=other, env=kept
        )
        self._other, self.shown = other, b""

    def press(self, keys):
        os.write(self._own, keys)

    def until(self, word):
        """Read until the terminal has been sent a word since the last call, and return what was sent before it."""
        while word not in self.shown:
            self.shown += os.read(self._own, 65536)
        before, _, self.shown = self.shown.partition(word)
        return before

    def modes_now(self):
        return termios.tcgetattr(self._other)

    def close(self):
        self._shell.wait()
        os.close(self._own)
        os.close(self._other)


TOP = f"{sys.executable} -m mpidl top"


def test_the_terminal_is_as_it_was_while_it_is_stopped_and_at_its_end(run):
    pytest.importorskip("rich")
    named = run.rename(run.with_name("größe"))
    words = f"{TOP} '{named}'; echo stopped $?; fg >/dev/null; echo ended $?"
    terminal = Terminal(100, words, PYTHONIOENCODING="ascii")
    terminal.until(screen.ENTER)
    assert b"/gr??e" in terminal.until(b"q quits")
    assert terminal.modes_now() != terminal.modes
    terminal.press(b"\x1a")
    terminal.until(screen.LEAVE)
    assert b"stopped %d" % (128 + signal.SIGTSTP) in terminal.until(screen.ENTER)
    terminal.until(b"q quits")
    terminal.press(b"\x1c")
    terminal.until(screen.LEAVE)
    terminal.until(b"ended 0")
    assert terminal.modes_now() == terminal.modes
    terminal.close()


def test_an_error_ends_no_screen_without_its_restoration(run):
    pytest.importorskip("rich")
    code = "import mpidl.top.screen as screen, mpidl.cli as cli; screen.view = None; cli.main(['top', {!r}])"
    terminal = Terminal(100, f'{sys.executable} -c "{code.format(str(run))}"; echo ended')
    terminal.until(screen.ENTER)
    terminal.until(screen.LEAVE)
    assert b"TypeError" in terminal.until(b"ended")
    assert terminal.modes_now() == terminal.modes
    terminal.close()
