"""The command line in the process of the tests, for what doesn't depend on a process of its own."""

import os
import subprocess

import pytest

from mpidl.cli import main


@pytest.fixture
def mpidl_here(bare_environment, tmp_path, monkeypatch, capsys):
    """Runs ``mpidl ARGUMENTS`` in an empty directory; ``variables`` are set in the environment from then on."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - bare_environment.keys():
        monkeypatch.delenv(name)

    def run(*arguments, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = main([str(each) for each in arguments])
        told = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, told.out, told.err)

    return run
