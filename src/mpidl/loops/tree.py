"""A pytree of JAX in a loop."""

from __future__ import annotations

from typing import Any

from mpidl.jax.model import JaxModel
from mpidl.loops.model import InLoop
from mpidl.loops.switch import LoopError
from mpidl.nn.adaptation import ModelError


class TreeInLoop(InLoop, JaxModel):
    """A `mpidl.jax.JaxModel` whose gradients a loop computes: pytrees like its parameters."""

    @property
    def shown(self) -> Any:
        """The pytree of the parameters."""
        return self.tree()

    def step_gradient(self, given: Any, loss: Any, part: str | None) -> Any:
        if given is None or hasattr(given, "shape"):
            return super().step_gradient(given, loss, part)
        try:
            return self.flat_gradient(given)
        except ModelError as error:
            raise LoopError(f"replica.step: gradient: {error}") from None
