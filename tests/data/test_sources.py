from __future__ import annotations

import subprocess
import sys
from dataclasses import is_dataclass

import msgspec
import pytest

from mpidl.data import SOURCES, Digits, Synthetic, open_dataset
from mpidl.errors import UsageError


def test_sources_are_dataclasses_by_name():
    assert set(SOURCES) == {"digits", "idx", "hdf5", "synthetic"}
    assert all(is_dataclass(source) and source.name == name for name, source in SOURCES.items())


def test_opens_a_source_or_a_section():
    assert open_dataset(Digits()).name == "digits"
    section = {"source": "synthetic", "shape": [3, 2], "noise": 2, "batch": 4, "portion": 8}
    assert open_dataset(section).input_shape == (3, 2)


def test_keys_convert_from_toml():
    converted = msgspec.convert({"shape": [3, 2], "samples": 5}, Synthetic)
    assert converted == Synthetic(samples=5, shape=(3, 2))


WRONG = {
    "unknown source": ({"source": "digit"}, r"^data\.source: 'digit' is unknown, did you mean 'digits'\?$"),
    "no source": ({}, r"^data\.source: None is unknown"),
    "unknown key": ({"source": "idx", "pth": "x"}, r"^data\.pth: unknown key, did you mean 'path'\?$"),
    "another's key": (
        {"source": "digits", "noise": 1},
        r"^data\.noise: unknown key; known: batch, portion, source$",
    ),
    "missing key": ({"source": "idx"}, r"^data: .*missing required field `path`$"),
    "type": ({"source": "hdf5", "path": 3}, r"^data\.path: Expected `str`, got `int`$"),
    "range": ({"source": "synthetic", "samples": 0}, r"^data\.samples: Expected `int` >= 1$"),
    "no shape": ({"source": "synthetic", "shape": []}, r"^data\.shape: Expected `array` of length >= 1$"),
    "size 0": ({"source": "synthetic", "shape": [3, 0]}, r"^data\.shape\[1\]: Expected `int` >= 1$"),
    "negative": ({"source": "synthetic", "noise": -0.5}, r"^data\.noise: Expected `float` >= 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_sections(case):
    section, expected = WRONG[case]
    with pytest.raises(UsageError, match=expected):
        open_dataset(section)


def test_import_leaves_h5py_and_numba_alone():
    code = "import mpidl.data, sys; print(sorted({'h5py', 'numba', 'mpi4py'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
