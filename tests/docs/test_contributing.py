"""The call paths that CONTRIBUTING.rst lists are those of the code."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.rst").read_text()
SECTION = TEXT.partition("Five call paths")[2].partition("An algorithm\n")[0]
STEP = re.compile(r"^(\d)\. ``([\w/]+\.py)``: ``([\w.]+)``", re.MULTILINE)


def ways():
    """Return the steps of each way: its number, the file and the name in it."""
    return [STEP.findall(part) for part in re.split(r"^[A-Z][^\n]*:\n\n", SECTION, flags=re.MULTILINE)[1:]]


def names(path):
    """Return what a file defines: functions, classes, and methods behind their class's name."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def test_each_way_takes_at_most_eight_steps():
    numbers = [[int(number) for number, *_ in way] for way in ways()]
    assert len(numbers) == 5
    assert all(way == list(range(1, len(way) + 1)) and len(way) <= 8 for way in numbers)
    assert sum(map(len, numbers)) == len(re.findall(r"^\d\. ", SECTION, re.MULTILINE))


@pytest.mark.parametrize(("file", "name"), [(file, name) for way in ways() for _, file, name in way])
def test_each_step_is_where_it_is_said_to_be(file, name):
    assert name in names(ROOT / "src" / "mpidl" / file)


def test_every_file_and_folder_exists():
    for path in re.findall(r"``((?:[\w]+/)*\w+(?:/|\.py))``", TEXT):
        places = [ROOT / path, *(ROOT / "src" / "mpidl").rglob(path.rstrip("/"))]
        assert any(place.exists() for place in places), path
