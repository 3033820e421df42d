"""Embedding: a trainable vector for each word."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from mpidl.errors import UsageError
from mpidl.nn.initialisers import INITIALISERS
from mpidl.nn.layers.layer import Buffer, Layer, Shape, Workspace
from mpidl.schema import choose


@dataclass(frozen=True)
class Embedding(Layer):
    """The rows of ``weight`` (vocabulary, units) selected by the inputs, whole numbers in [0, vocabulary).

    Attributes
    ----------
    vocabulary
        Number of rows; at most 2**24 for ids that come as float32, which represents larger ones inexactly.
    units
        Length of a row. The outputs have the inputs' shape with this axis appended.
    initialiser
        A name in `INITIALISERS`.
    """

    type: ClassVar[str] = "embedding"
    takes_integers: ClassVar[bool] = True

    vocabulary: Annotated[int, Meta(ge=1)]
    units: Annotated[int, Meta(ge=1)]
    initialiser: str = "lecun_normal"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(INITIALISERS, "initialiser", self.initialiser)

    def output_shape(self, input_shape: Shape) -> Shape:
        """See `Layer`."""
        return (*input_shape, self.units)

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        """See `Layer`."""
        return {"weight": (self.vocabulary, self.units)}

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, dtype: str) -> np.ndarray:
        """See `Layer`."""
        # The fan-in is 1: a single row reaches an output, whatever the vocabulary.
        values = INITIALISERS[self.initialiser](generator, shape, dtype)
        values *= sqrt(self.vocabulary)
        return values

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        """See `Layer`."""
        return {"rounded": Buffer(input_shape), "ids": Buffer(input_shape, "int64")}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        ids = work.buffers["ids"]
        if inputs.dtype.kind in "iu":
            work.xp.copyto(ids, inputs, casting="unsafe")
        else:
            exact = 2 << work.xp.finfo(inputs.dtype).nmant
            if self.vocabulary > exact:
                raise UsageError(f"vocabulary: {self.vocabulary}, ids of {inputs.dtype} are exact up to {exact}")
            work.xp.rint(inputs, out=work.buffers["rounded"])
            work.xp.copyto(ids, work.buffers["rounded"], casting="unsafe")
        for extreme in (int(ids.min()), int(ids.max())):
            if not 0 <= extreme < self.vocabulary:
                raise UsageError(f"an id of {extreme}, the embedding has a vocabulary of {self.vocabulary}")
        work.kernels.take_rows(work.parameters["weight"], ids.reshape(-1), outputs.reshape(-1, self.units))

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        gradient = work.gradients["weight"]
        gradient.fill(0)
        rows = output_gradient.reshape(-1, self.units)
        work.kernels.add_to_rows(gradient, work.buffers["ids"].reshape(-1), rows)
        if input_gradient is not None:
            input_gradient.fill(0)
