"""The kinds of models, each in a loop."""

from __future__ import annotations

from mpidl.loops.model import InLoop
from mpidl.nn.model import CompleteModel


def class_in_loop(kind: type[CompleteModel]) -> type[InLoop]:
    """Return the class of a model of that class in a loop."""
    if kind.__module__ == "mpidl.torch.model":
        from mpidl.loops.module import ModuleInLoop

        return ModuleInLoop
    if kind.__module__ == "mpidl.jax.model":
        from mpidl.loops.tree import TreeInLoop

        return TreeInLoop
    return type(f"{kind.__name__}InLoop", (InLoop, kind), {})
