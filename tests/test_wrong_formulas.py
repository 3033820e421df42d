"""The wrong formulas of ``make formulas``, which seldom runs, follow the sources."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load():
    path = ROOT / "benchmarks" / "wrong_formulas.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRONG = load()


@pytest.mark.parametrize("file", sorted({formula.file for formula in WRONG.FORMULAS}))
def test_each_wrong_formula_stands_for_one_of_the_sources_and_can_be_compiled(file):
    text = (ROOT / WRONG.PACKAGE / file).read_text()
    for formula in WRONG.FORMULAS:
        if formula.file == file:
            assert formula.right in text, formula.right
            if file.endswith(".py"):
                ast.parse(text.replace(formula.right, formula.wrong, 1))
