"""Wait-free back-propagation: a model reports which part of a gradient is final while it computes the rest.

References
----------
H. Zhang et al. (2017), Poseidon: an efficient communication architecture for distributed deep learning on GPU clusters,
section 3.1.
"""

from __future__ import annotations

from typing import Any, Protocol

from mpidl.nn.model import Model


class TakeFinal(Protocol):
    """Takes the part of a gradient that is final."""

    def __call__(self, gradient: Any, start: int) -> None:
        """Take the elements from `start` on."""


class WaitFree(Model, Protocol):
    """A model that reports what is final of a gradient."""

    def report_final(self, take: TakeFinal | None) -> None:
        """Call `take` from now on while `loss_and_gradient` computes; None: call nothing.

        It is called with the vector that is going to be returned and its first final element, which is never beyond
        that of the call before. It is not called if the loss isn't finite.
        """


def report_final(model: Any, take: TakeFinal | None) -> None:
    """Let a model report what is final of its gradients, if it can.

    A subclass with a `loss_and_gradient` of its own can't, unless it has a `report_final` of its own, too.
    """
    for each in type(model).__mro__:
        if "report_final" in vars(each):
            model.report_final(take)
        if {"report_final", "loss_and_gradient"} & vars(each).keys():
            return
