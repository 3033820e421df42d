"""The wrong formulas of ``make formulas``, which seldom runs, follow the sources."""

import marshal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from wrong_formulas import FORMULAS, PACKAGE, ROOT


def code(text):
    """Return what is executed: without docstrings and comments."""
    return marshal.dumps(compile(text, "", "exec", optimize=2))


@pytest.mark.parametrize("file", sorted({formula.file for formula in FORMULAS}))
def test_each_wrong_formula_stands_for_one_of_the_sources_and_can_be_compiled(file):
    text = (ROOT / PACKAGE / file).read_text()
    for formula in FORMULAS:
        if formula.file == file:
            assert formula.right in text, formula.right
            if file.endswith(".py"):
                assert code(text) != code(text.replace(formula.right, formula.wrong, 1)), formula.right
