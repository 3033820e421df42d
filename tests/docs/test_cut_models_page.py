"""The figures and the examples that the manual and the docstrings give for pipelines."""

import doctest
from pathlib import Path

from mpidl.partition import schedules

PAGE = Path(__file__).parents[2] / "docs" / "cut_models.rst"


def test_examples():
    results = [doctest.testfile(str(PAGE), module_relative=False), doctest.testmod(schedules)]
    assert all(each.attempted and not each.failed for each in results)
