"""The manual's table of cuts is that of the layers."""

import re
from pathlib import Path

from mpidl.nn import LAYERS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "layers.rst").read_text()


def test_the_table_lists_what_layers_declare():
    rows = re.findall(r"^``(\w+)`` {2,}(.+)$", TEXT, re.MULTILINE)
    assert rows == [(name, ", ".join(LAYERS[name].cuts or ["samples"])) for name in sorted(LAYERS)]


def test_every_cut_is_explained():
    terms = {term for line in re.findall(r"^((?:\w+, )*\w+)\n    \S", TEXT, re.MULTILINE) for term in line.split(", ")}
    assert terms >= {cut for layer in LAYERS.values() for cut in (*layer.cuts, "samples")}
