"""Consecutive functions of JAX as a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from mpidl.errors import UsageError
from mpidl.jax.model import JaxModel

__all__ = ["JaxSequence"]


class JaxSequence(JaxModel):
    """Functions of JAX, each of the outputs of the one before, as a model; ranks can compute a run of them each.

    Parameters
    ----------
    functions : sequence of callable
        Functions of (parameters, inputs) that return outputs (n, ...). One with an argument ``key`` gets a random key
        there, as for dropout, and None when the model is tested.
    parameters : sequence of pytree
        One for each function; see `JaxModel`. ``None`` for functions without any.
    loss : callable
        Function of (outputs, targets) that returns the mean loss over the batch, a scalar.
    seed, micro_batches, takes_integers
        See `JaxModel`.

    Raises
    ------
    UsageError
        There are not as many pytrees as functions, or see `JaxModel`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def dense(parameters, inputs):
    ...     return inputs @ parameters["weight"]
    >>> def squared(outputs, targets):
    ...     return jnp.mean((outputs - targets) ** 2)
    >>> model = JaxSequence([dense, dense], [{"weight": jnp.zeros((3, 4))}, {"weight": jnp.zeros((4, 2))}], squared)
    >>> [tensor.name for tensor in model.layout]
    ['0.weight', '1.weight']
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        parameters: Sequence[Any],
        loss: Callable[[Any, Any], Any],
        *,
        seed: int = 0,
        micro_batches: int = 1,
        takes_integers: bool = False,
    ) -> None:
        if len(functions) != len(parameters):
            raise UsageError(f"model: {len(parameters)} pytrees for {len(functions)} functions, expected one for each")
        self.functions, self.loss, self.seed = tuple(functions), loss, seed
        self._keyed = ["key" in inspect.signature(each).parameters for each in functions]

        def whole(trees: Any, batch: Any, key: Any = None) -> Any:
            inputs, targets = batch
            outputs = self.apply(dict(enumerate(trees)), inputs, key)
            return loss(outputs, targets), outputs

        super().__init__(
            list(parameters), whole, has_aux=True, seed=seed, micro_batches=micro_batches, takes_integers=takes_integers
        )

    def apply(self, trees: dict[int, Any], inputs: Any, key: Any = None) -> Any:
        """Return what some functions make of inputs.

        Parameters
        ----------
        trees : dict of int to pytree
            The parameters of each of them, by its number.
        inputs : array (n, ...)
        key : jax.Array, optional
            Each function has one of its own, which follows from this one.
        """
        values = inputs
        for number, tree in trees.items():
            own = {"key": None if key is None else jax.random.fold_in(key, number)} if self._keyed[number] else {}
            values = self.functions[number](tree, values, **own)
        return values
