"""What this user has measured, and how long predictions take."""

import pytest

from mpidl.config.measured import save
from mpidl.runs import search


@pytest.fixture
def few_steps(monkeypatch, tmp_path):
    """Predictions take a few steps only, and this user has measured nothing."""
    monkeypatch.setattr(search, "STEPS", (4, 8))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def measured(tmp_path):
    """Lets this user have measured something."""

    def measure(found):
        save(tmp_path / "mpidl" / "measured.toml", found)
        return tmp_path / "mpidl" / "measured.toml"

    return measure
