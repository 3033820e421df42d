"""Consecutive functions of JAX as a model, whole or by stages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpidl.data.batch import Batch, seed_of_batch
from mpidl.errors import UsageError
from mpidl.jax.model import JaxModel, Tree, figures
from mpidl.nn.adaptation import ModelError, model_errors
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.partition.schedules import BackwardPart, MicroBatch
from mpidl.partition.sections import Sections, Submodule, cut_into_sections

__all__ = ["JaxSequence", "JaxStage", "sections", "stage"]


class JaxSequence(JaxModel):
    """Consecutive functions of JAX as a model that can be cut into stages.

    Parameters
    ----------
    functions : sequence of callable
        Functions of (parameters, inputs) that return outputs (n, ...), the inputs of the next function. An argument
        ``key`` gets a random key, for dropout, or None in evaluations.
    parameters : sequence of pytree
        One for each function, as for `JaxModel`; ``None`` for functions without parameters.
    loss : callable
        Function of (outputs, targets) that returns the mean loss over the batch, a scalar.
    seed, micro_batches, takes_integers
        As for `JaxModel`.

    Raises
    ------
    UsageError
        The numbers of pytrees and functions differ, or `JaxModel` can't train the parameters.

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
        """Return the outputs of some functions, given their parameters by their numbers, and inputs (n, ...).

        The key of each function is derived from `key`.
        """
        values = inputs
        for number, tree in trees.items():
            own = {"key": None if key is None else jax.random.fold_in(key, number)} if self._keyed[number] else {}
            values = self.functions[number](tree, values, **own)
        return values


def sections(model: JaxModel, stages: int, costs: Sequence[float] | None = None) -> Sections:
    """Cut a `JaxSequence` into stages, as `mpidl.partition.sections.sections_of` does.

    Raises
    ------
    UsageError
        The model isn't a `JaxSequence`, or there are too few functions with parameters.
    """
    if not isinstance(model, JaxSequence):
        raise UsageError(f"topology.stages: {stages}, but a function of JAX can't be cut, expected 1, or a JaxSequence")
    modules = [
        Submodule(
            [name for name in model.layout.shapes if name.partition(".")[0] == str(number)],
            cost=None if costs is None else costs[number],
        )
        for number in range(len(model.functions))
    ]
    return cut_into_sections(modules, model.layout.shapes, stages)


class JaxStage(CompleteModel):
    """Consecutive functions of a `JaxSequence`, for a plan of `sections`: a `StageModel`."""

    def __init__(self, whole: JaxSequence, plan: Sections, rank: int, *, apart: bool) -> None:
        self._model, self._name = whole, f"model: stage {rank}"
        self._first, self._last = rank == 0, rank == plan.stages - 1
        trees = whole.tree()
        self._tree = Tree({number: trees[number] for number in range(*plan.runs[rank])}, self._name)
        self._gradient = np.zeros(self._tree.layout.size, whole.dtype)
        self._gradients = list(self._tree.layout.views(self._gradient).values())
        self.parameters = self._tree.vector
        self._seed = 0
        self._kept: dict[int, Any] = {}
        self._passed = jax.jit(self._pass)
        self._tested = jax.jit(self._apply)
        self._loss_of = jax.jit(whole.loss)
        self._ways = {
            "both": jax.jit(lambda way, gradient: way(gradient)),
            "inputs": jax.jit(lambda way, gradient: way(gradient)[1:]),
            "weights": jax.jit(lambda way, gradient: way(gradient)[:1]),
        }

    @property
    def parameters(self) -> Any:
        """The stage's part of the flat vector."""
        return self._vector

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._vector, self._leaves = vector, list(self._tree.layout.views(vector).values())

    def constants(self) -> dict[str, np.ndarray]:
        return dict(self._tree.constants)

    # Functions that JAX traces.

    def _apply(self, leaves: Any, constants: Any, inputs: Any, seed: Any) -> Any:
        key = None if seed is None else jax.random.fold_in(jax.random.key(seed[0]), seed[1])
        floats = jnp.issubdtype(inputs.dtype, jnp.floating)
        values = inputs.astype(self._model.dtype) if floats else inputs
        return self._model.apply(self._tree.filled(leaves, constants), values, key)

    def _pass(self, leaves: Any, constants: Any, inputs: Any, seed: Any, targets: Any, share: Any) -> tuple[Any, Any]:
        """Return the outputs, or on the last stage the loss, and their backward pass."""

        def result(leaves: Any, values: Any) -> Any:
            outputs = self._apply(leaves, constants, values, seed)
            return self._model.loss(outputs, targets) * share if self._last else outputs

        if self._first:
            return jax.vjp(lambda leaves: result(leaves, inputs), leaves)  # type: ignore[no-any-return]
        return jax.vjp(result, leaves, inputs)  # type: ignore[no-any-return]

    # The interface of `StageModel`.

    def begin(self, batch: Batch) -> None:
        self._gradient.fill(0)
        self._seed = seed_of_batch(self._model.seed, batch.number)

    def compute(self, inputs: Any, own: MicroBatch) -> np.ndarray | None:
        if self._last:
            self._kept[own.slot] = inputs
            return None
        with model_errors(self._name):
            outputs, way = self._passed(self._leaves, self._tree.constants, inputs, self._seeds(own), None, None)
            self._kept[own.slot] = way, None
            if outputs.shape[:1] != (own.samples.size,):
                raise ModelError(f"{self._name} returned {outputs.shape}, expected {own.samples.size} samples")
            return np.asarray(outputs)

    def weighted_loss(self, targets: Any, own: MicroBatch) -> float:
        with model_errors(self._name):
            given = self._kept[own.slot], self._seeds(own), targets, own.share
            loss, way = self._passed(self._leaves, self._tree.constants, *given)
            self._kept[own.slot] = way, np.ones((), loss.dtype)
            return float(loss)

    def back(self, gradient: np.ndarray | None, own: MicroBatch, part: BackwardPart) -> np.ndarray | None:
        way, kept = self._kept.pop(own.slot)
        given = kept if gradient is None else gradient
        if part == "inputs":
            self._kept[own.slot] = way, given
        with model_errors(self._name):
            found = self._ways[part](way, given)
            if part != "inputs":
                for sums, each in zip(self._gradients, found[0], strict=True):
                    np.add(sums, each, out=sums)
            return np.asarray(found[-1]) if part != "weights" and not self._first else None

    def end(self) -> Any:
        return self._gradient

    def test(self, inputs: Any) -> Any:
        with model_errors(self._name):
            return self._tested(self._leaves, self._tree.constants, inputs, None)

    def host(self, outputs: Any) -> np.ndarray:
        return np.asarray(outputs)

    def judge(self, batch: Batch, outputs: Any) -> Evaluation:
        with model_errors(self._name):
            return figures(self._loss_of(outputs, batch.targets), outputs, batch)

    def _seeds(self, own: MicroBatch) -> tuple[np.uint32, np.uint32]:
        return np.uint32(self._seed), np.uint32(own.samples.start)


stage = JaxStage
