"""The command that watches a run."""

import sys

import pytest


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
