"""Networks from a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpidl import schema
from mpidl.errors import UsageError
from mpidl.nn.layers import LAYERS
from mpidl.nn.layers.layer import Layer
from mpidl.nn.losses import LOSSES, Regularisation, SoftmaxCrossEntropy
from mpidl.nn.network import Network


def from_config(
    layer_sections: Sequence[Mapping[str, Any]],
    loss: str,
    input_shape: Sequence[int],
    seed: int,
    dtype: str = "float32",
    xp: Any = np,
    label_smoothing: float = 0.0,
    regularisation: Regularisation | None = None,
) -> Network:
    """Build the network that ``[[model.layer]]`` and ``model.loss`` describe, without allocating parameters.

    Parameters
    ----------
    layer_sections
        The sections in order, such as ``{"type": "dense", "units": 1024, "activation": "relu"}``.
    loss
        A name in `LOSSES`.
    input_shape, seed, dtype, xp, regularisation
        As for `Network`.
    label_smoothing
        Smoothing of the targets of softmax cross-entropy, in [0, 1).

    Raises
    ------
    UsageError
        A key is unknown, missing or of the wrong type, or the parts don't fit together.
    """
    layers = [layer_from_section(section, f"model.layer[{i}]") for i, section in enumerate(layer_sections)]
    chosen = schema.choose(LOSSES, "model.loss", loss)
    function = SoftmaxCrossEntropy(label_smoothing) if chosen is SoftmaxCrossEntropy else chosen()
    return Network(
        layers, input_shape, loss=function, dtype=dtype, seed=seed, xp=xp, regularisation=regularisation
    )  # fmt: skip


def layer_from_section(section: Mapping[str, Any], where: str) -> Layer:
    """Build a layer from its section, which errors call `where`; UsageError if a key is unknown, missing or wrong."""
    schema.check_table(where, section)
    if "type" not in section:
        raise UsageError(f"{where}.type: missing; known: {', '.join(sorted(LAYERS))}")
    layer = schema.choose(LAYERS, f"{where}.type", section["type"])
    schema.check_keys(where, section, ["type", *schema.keys(layer)])
    return schema.build(layer, where, {key: value for key, value in section.items() if key != "type"})
