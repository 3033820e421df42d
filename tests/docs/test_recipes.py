"""Recipes of packages, which agree with `pyproject.toml`, and files for services."""

import ast
import re
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}
URL = PROJECT["urls"]["Homepage"]
RECIPES = [path for path in sorted((ROOT / "packaging").glob("*/*")) if path.is_file()]
#: Names of distributions elsewhere, where they differ.
CONDA = {"python-xxhash": "xxhash"}
MODULES = {"Greenlet": "greenlet", "python-xxhash": "xxhash"}


def test_addresses_are_the_project_s_or_where_its_formats_live():
    known = ("https://raw.githubusercontent.com/prefix-dev/recipe-format/",)
    for path in RECIPES:
        found = [each for each in re.findall(r"https?://[^\s'\"}]+", path.read_text()) if not each.startswith(known)]
        assert found, path
        assert [each for each in found if not each.startswith(URL)] == []


def test_conda_needs_what_the_package_needs():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    found = dict(each.partition(" ")[::2] for each in recipe["requirements"]["run"])
    assert found.pop("python") == ">=${{ python_min }}"
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    assert {CONDA.get(name, name): SpecifierSet(text) for name, text in found.items()} == REQUIREMENTS
    assert recipe["about"]["license"] == PROJECT["license"]


class Stub:
    """Stands for Spack: records what a recipe says."""

    def __init__(self):
        self.said = []

    def __getattr__(self, name):
        return lambda *values, **options: self.said.append((name, values, options))


def test_spack_needs_what_the_package_needs():
    path = ROOT / "packaging/spack/package.py"
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not isinstance(node, ast.ImportFrom)]
    spack = Stub()
    names = {name: getattr(spack, name) for name in ("depends_on", "license", "variant", "version")}
    given = {"PythonPackage": object, "default_args": lambda **options: nullcontext()}
    exec(compile(tree, path, "exec"), names | given)
    needed = [values[0] for name, values, options in spack.said if name == "depends_on" and "when" not in options]
    found = dict(each.removeprefix("py-").replace("-", "_").split("@") for each in needed)
    assert found.pop("setuptools") == "77:"
    assert f">={found.pop('python').removesuffix(':')}" == PROJECT["requires-python"]
    assert found.keys() == {name.replace("-", "_") for name in REQUIREMENTS}
    for name, specifier in REQUIREMENTS.items():
        first, _, last = found[name.replace("-", "_")].partition(":")
        bounds = {each.operator: each.version for each in specifier}
        assert Version(first) == Version(bounds[">="]), name
        # Spack's last version is inclusive, with all of its patches.
        above = last and f"{last.rpartition('.')[0]}.{int(last.rpartition('.')[2]) + 1}"
        assert above == bounds.get("<", ""), name


def test_the_versions_of_easybuild_suffice():
    path = next((ROOT / "packaging").glob("easybuild/*.eb"))
    values = {}
    exec(path.read_text(), {}, values)
    toolchain, version = values["toolchain"], values["version"]
    assert path.name == f"mpidl-{version}-{toolchain['name']}-{toolchain['version']}.eb"
    listed = [*values["dependencies"], *(each for each in values["exts_list"] if each[0] != "mpidl")]
    found = {MODULES.get(each[0], each[0]): each[1] for each in listed}
    # Modules with several packages, among them these.
    del found["Python-bundle-PyPI"], found["SciPy-bundle"]
    assert found.pop("Python") in SpecifierSet(PROJECT["requires-python"])
    assert REQUIREMENTS.keys() - found.keys() == {"numpy", "llvmlite", "tomlkit", "tomli-w"}
    assert [name for name, version in found.items() if version not in REQUIREMENTS[name]] == []


@pytest.mark.parametrize("path", [*sorted(ROOT.glob(".github/**/*.yml")), ROOT / ".readthedocs.yaml"], ids=str)
def test_files_of_services_can_be_read(path):
    yaml = pytest.importorskip("yaml")
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_workflows_run_targets_that_there_are():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    used = [
        name for path in ROOT.glob(".github/workflows/*.yml") for name in re.findall(r"make (\w+)", path.read_text())
    ]
    assert len(used) >= 4
    assert set(used) <= targets | {"dist"}
