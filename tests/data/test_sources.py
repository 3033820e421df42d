from __future__ import annotations

import subprocess
import sys
from dataclasses import is_dataclass

import msgspec
import pytest

from mpidl.data import SOURCES, Digits, Hdf5, Idx, Synthetic
from mpidl.errors import UsageError
from mpidl.schema import build


def test_sources_are_dataclasses_by_name():
    assert set(SOURCES) == {"arrays", "cifar10", "click_log", "digits", "factory", "idx", "hdf5", "synthetic"}
    assert all(is_dataclass(source) and source.name == name for name, source in SOURCES.items())


def test_keys_convert_from_toml():
    converted = msgspec.convert({"shape": [3, 2], "samples": 5}, Synthetic)
    assert converted == Synthetic(samples=5, shape=(3, 2))


WRONG = {
    "another's key": (Digits, {"noise": 1}, r"^data\.noise: unknown key"),
    "missing key": (Idx, {}, r"^data\.path: missing, expected "),
    "type": (Hdf5, {"path": 3}, r"^data\.path: expected .*str, found 3$"),
    "range": (Synthetic, {"samples": 0}, r"^data\.samples: expected int >= 1, found 0$"),
    "no shape": (Synthetic, {"shape": []}, r"^data\.shape: expected non-empty list of int >= 1, found \[\]$"),
    "size 0": (Synthetic, {"shape": [3, 0]}, r"^data\.shape: expected .*, found \[3, 0\]$"),
    "negative": (Synthetic, {"noise": -0.5}, r"^data\.noise: expected float >= 0, found -0\.5$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_keys(case):
    source, keys, expected = WRONG[case]
    with pytest.raises(UsageError, match=expected):
        build(source, "data", keys)


def test_import_leaves_h5py_and_numba_alone():
    code = "import mpidl.data, sys; print(sorted({'h5py', 'numba', 'mpi4py'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
