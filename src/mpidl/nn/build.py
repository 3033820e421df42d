"""Networks from a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from mpidl.errors import UsageError, nearest
from mpidl.nn.layers import LAYERS
from mpidl.nn.layers.layer import Layer
from mpidl.nn.losses import LOSSES
from mpidl.nn.network import Network
from mpidl.nn.registry import lookup


def from_config(
    layer_sections: Sequence[Mapping[str, Any]],
    loss: str,
    input_shape: Sequence[int],
    seed: int,
    dtype: str = "float32",
    xp: Any = np,
) -> Network:
    """Build the network that ``[[model.layer]]`` and ``model.loss`` describe, without allocating parameters.

    Parameters
    ----------
    layer_sections
        In order, such as ``{"type": "dense", "units": 1024, "activation": "relu"}``.
    loss
        A name in `LOSSES`.
    input_shape, seed, dtype, xp
        As for `Network`.

    Raises
    ------
    UsageError
        Naming the key that is unknown, missing or of another type, or what doesn't fit.
    """
    layers = [layer_from_section(section, f"model.layer[{i}]") for i, section in enumerate(layer_sections)]
    return Network(layers, input_shape, lookup(LOSSES, loss, "model.loss")(), dtype, seed, xp)


def layer_from_section(section: Mapping[str, Any], where: str) -> Layer:
    """Build a layer from its section; `where` is the section's own key, for errors.

    Raises
    ------
    UsageError
        Naming the key that is unknown, missing or of another type.
    """
    if "type" not in section:
        raise UsageError(f"{where}.type: missing{nearest('', list(LAYERS))}")
    layer = lookup(LAYERS, section["type"], f"{where}.type")
    known = {field.name: field for field in fields(layer)}  # type: ignore[arg-type]
    for key in section:
        if key != "type" and key not in known:
            raise UsageError(f"{where}.{key}: unknown key{nearest(key, ['type', *known])}")
    annotations = get_type_hints(layer, include_extras=True)
    values = {}
    for key, field in known.items():
        if key in section:
            values[key] = _convert(section[key], annotations[key], f"{where}.{key}")
        elif field.default is MISSING:
            raise UsageError(f"{where}.{key}: missing, expected {_describe(annotations[key])}")
    try:
        return layer(**values)
    except UsageError as error:
        raise UsageError(f"{where}.{error}") from None


def _convert(value: Any, annotation: Any, key: str) -> Any:
    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        raise UsageError(f"{key}: expected {_describe(annotation)}, found {value!r}") from None


def _describe(annotation: Any) -> str:
    """Say an annotation in words: ``Annotated[int, Meta(ge=1)]`` as ``int >= 1``."""
    if get_origin(annotation) is not Annotated:
        return getattr(annotation, "__name__", str(annotation))
    base, meta = get_args(annotation)
    limits = {">": meta.gt, ">=": meta.ge, "<": meta.lt, "<=": meta.le}
    return f"{_describe(base)} {' and '.join(f'{sign} {x}' for sign, x in limits.items() if x is not None)}"
