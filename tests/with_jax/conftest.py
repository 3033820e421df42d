"""What tests of JAX share."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("jax") else ["test_*.py"]


@pytest.fixture
def float64():
    """Let JAX make arrays of float64."""
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
