"""What tests of JAX share."""

import pytest


@pytest.fixture
def float64():
    """Let JAX make arrays of float64."""
    import jax

    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)
