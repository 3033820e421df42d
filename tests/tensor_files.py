"""The formats of files of tensors, of which those of PyTorch are tested where it is installed."""

from importlib.util import find_spec

import pytest

from mpidl.storage.tensor_files import SUFFIXES

NO_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch")
#: Those that can be tested here, and parameters of tests for each.
POSSIBLE = [kind for kind in SUFFIXES if kind != "torch" or find_spec("torch") is not None]
KINDS = [pytest.param(kind, marks=NO_TORCH) if kind == "torch" else kind for kind in SUFFIXES]
