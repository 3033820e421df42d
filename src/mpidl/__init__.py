"""DistBelief on MPI: asynchronous training through a sharded parameter server on one-sided windows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mpidl.version import VERSION as __version__

# Imported at first use, so that `import mpidl` and the command line start at once.
_HOMES = {
    "train": "mpidl.runs.train",
    "evaluate": "mpidl.runs.evaluate",
    "Downpour": "mpidl.algorithms",
    **dict.fromkeys(
        (
            "Network",
            "Activation",
            "Add",
            "AveragePool2d",
            "BatchNormalisation",
            "Concatenate",
            "Conv2d",
            "Dense",
            "Dropout",
            "Embedding",
            "Flatten",
            "L2Pool2d",
            "LayerNormalisation",
            "LocalContrastNormalisation",
            "LocallyConnected2d",
            "MaxPool2d",
        ),
        "mpidl.nn",
    ),
    **dict.fromkeys(("Batch", "Cifar10", "Dataset", "Digits", "Hdf5", "Idx", "Synthetic"), "mpidl.data"),
    **dict.fromkeys(("Adagrad", "Adam", "Adamw", "Momentum", "Nesterov", "Rmsprop", "Sgd"), "mpidl.rules"),
    **dict.fromkeys(("MpidlError", "UsageError"), "mpidl.errors"),
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mpidl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
