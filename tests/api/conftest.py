"""What tests of `mpidl.train` have in common."""

import pytest

import mpidl
from mpidl.runs import train as module


@pytest.fixture
def resolved(monkeypatch):
    """Return a function that returns the configuration with which `mpidl.train` would start a run."""
    found = []
    monkeypatch.setattr(module, "run", lambda config, resume, make: found.append(config) or {})

    def train(*arguments, **keywords):
        mpidl.train(*arguments, **keywords)
        return found.pop()

    return train
