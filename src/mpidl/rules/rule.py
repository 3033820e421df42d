"""The base class of update rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

from mpidl.rules.scalar import kernel, loop
from mpidl.schema import Checked


class Rule(Checked):
    """An update rule: a frozen dataclass of hyperparameters and one scalar form.

    The scalar form updates one element, and is compiled for NumPy and for CuPy vectors. Its arguments are the element,
    its states, its gradient and the `coefficients`; it returns the new element and states as a tuple. It consists of
    assignments, arithmetic, comparisons, conditional expressions and `sqrt`, all in the vectors' precision, constants
    included. Results are bitwise independent of how vectors are divided into shards and chunks.

    Attributes
    ----------
    name
        The rule's name in a configuration.
    states
        Names of the state vectors, each as long as the parameters.
    rate
        Learning rate, the first hyperparameter of every rule.

    Examples
    --------
    >>> import numpy as np
    >>> rule = Adagrad(rate=0.5)
    >>> parameters = np.zeros(3, np.float32)
    >>> state = rule.init(parameters)
    >>> rule.update(parameters, state, np.array([4, 0, -1], np.float32), step=1)
    >>> parameters
    array([-0.5,  0. ,  0.5], dtype=float32)
    """

    name: ClassVar[str]
    states: ClassVar[tuple[str, ...]] = ()
    scalar: ClassVar[Callable[..., tuple[float, ...]]]
    rate: float

    def coefficients(self, step: int, rate: float, weight: float = 1.0) -> tuple[float, ...]:
        """Return the scalar form's last arguments for a step, counted from 1, a rate, and a gradient's weight."""
        raise NotImplementedError

    @property
    def scalar_rules(self) -> tuple[Rule, ...]:
        """The rules whose scalar forms this one uses."""
        return (self,)

    def init(self, parameters: Any) -> tuple[Any, ...]:
        """Return the state before the first step: a vector of zeros like `parameters` for each name in `states`."""
        import numpy as np

        return tuple(np.zeros_like(parameters) for _ in self.states)

    def update(
        self,
        parameters: Any,
        state: tuple[Any, ...],
        gradient: Any,
        step: int,
        rate: float | None = None,
        sparse: bool = False,
        sparing: Sequence[tuple[int, int]] = (),
        decay: float = 0.0,
        weight: float = 1.0,
    ) -> None:
        """Apply one gradient to a slice of the parameters and of their state, in place.

        Parameters
        ----------
        parameters
            Contiguous vector of shape (n,), float32 or float64, NumPy or CuPy; changed.
        state
            A vector like `parameters` for each name in `states`; changed.
        gradient
            Vector like `parameters`.
        step
            Number of this update of the parameters, counted from 1.
        rate
            Used in place of the rule's own rate if given.
        sparse
            Skip elements whose gradient is 0, even if the rule would change them; NumPy vectors only.
        sparing
            Ranges (start, stop) of statistics, such as the running means of batch normalisation, from which the
            gradient is subtracted unchanged.
        decay
            L2 weight decay: the factor of the parameters that is added to the gradient.
        weight
            Factor of the rate for this gradient alone: of all the steps that it makes, those by momentum in later
            updates included. Means of squares are those of unweighted gradients.

        Raises
        ------
        ValueError
            If the vectors differ in shape or dtype.
        """
        for vector in (*state, gradient):
            if vector.shape != parameters.shape or vector.dtype != parameters.dtype:
                raise ValueError(
                    f"{self.name}: {vector.dtype} vector of shape {vector.shape}, "
                    f"the parameters are {parameters.dtype} of shape {parameters.shape}"
                )
        apply = compiled(type(self), type(parameters), sparse, decay != 0.0)  # type: ignore[arg-type]
        coefficients = self.coefficients(step, self.rate if rate is None else rate, weight)
        spared = [parameters[start:stop] - gradient[start:stop] for start, stop in sparing]
        apply(parameters, *state, gradient, *coefficients, *((decay,) if decay else ()))
        for (start, stop), values in zip(sparing, spared, strict=True):
            parameters[start:stop] = values

    def warm(self, dtype: Any, sparse: bool = False, decay: float = 0.0) -> None:
        """Compile for NumPy vectors of this dtype, or load from Numba's cache, before the first update."""
        import numpy as np

        parameters = np.zeros(1, dtype)
        self.update(parameters, self.init(parameters), np.zeros(1, dtype), step=1, sparse=sparse, decay=decay)


@cache
def compiled(rule: type[Rule], array: type, sparse: bool, decaying: bool) -> Callable[..., None]:
    """Return the function that applies a rule to vectors of this array type."""
    if not hasattr(array, "__cuda_array_interface__"):
        return loop(rule, sparse, decaying)
    if sparse:
        raise ValueError(f"{rule.name}: sparse updates are for NumPy vectors, found {array.__name__}")
    return kernel(rule, decaying)
