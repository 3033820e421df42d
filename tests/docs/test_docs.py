"""The manual, the README and the classes agree. None of this needs Sphinx."""

from __future__ import annotations

import ast
import doctest
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpidl.algorithms import ALGORITHMS
from mpidl.config import SECTIONS
from mpidl.data import SOURCES
from mpidl.nn import LAYERS
from mpidl.partition import schedules
from mpidl.rules import RULES
from mpidl.version import VERSION

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mpidl"
sys.path.insert(0, str(ROOT / "docs"))
import docstrings  # noqa: E402
import generate  # noqa: E402


def classes() -> Iterator[type]:
    """Yield each class whose fields are keys of a configuration."""
    for registry in (SECTIONS, ALGORITHMS, RULES, LAYERS, SOURCES):
        for cls in dict.fromkeys(registry.values()):
            yield cls
            yield from (within for _, within, _ in docstrings.subsections(cls))


@pytest.mark.parametrize("cls", list(classes()), ids=lambda cls: cls.__name__)
def test_every_key_is_described(cls):
    # In a table, "See `Other`" tells nothing.
    keys = docstrings.keys(cls)
    holes = [name for key in keys if not key.description or key.description.startswith("See ") for name in key.names]
    assert not holes, f"{cls.__module__}.{cls.__name__}: no description of {', '.join(holes)}"


def test_every_section_has_a_table():
    page = (ROOT / "docs" / "configuration.rst").read_text()
    assert [name for name in SECTIONS if f".. keys: mpidl.config.SECTIONS.{name}\n" not in page] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.rst")), ids=lambda page: page.stem)
def test_pages_show_the_code_as_it_is(page):
    text = page.read_text()
    assert generate.generated(text) == text, f"docs/{page.name} shows code of before: run `{generate.COMMAND}`"
    assert "literalinclude::" not in text, "only Sphinx shows it, not a reader of the file"


def test_the_stub_has_the_types_of_keywords_as_they_are():
    assert generate.STUB.read_text() == generate.stub(), f"run `{generate.COMMAND}`"


def test_every_public_name_is_in_the_api_reference():
    reference = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.rst"))
    modules = set(re.findall(r"^\.\. automodule:: (\S+)", reference, re.MULTILINE))
    objects = set(re.findall(r"^\.\. auto\w+:: (\S+)", reference, re.MULTILINE))
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    names = {
        f"mpidl.{alias.name}": f"mpidl.{node.module}" if node.module else f"mpidl.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for framework in ("torch", "jax"):
        tree = ast.parse((PACKAGE / framework / "__init__.py").read_text())
        public = next(node.value for node in tree.body if isinstance(node, ast.Assign))
        names |= {f"mpidl.{framework}.{name}": f"mpidl.{framework}" for name in ast.literal_eval(public)}
    assert "mpidl.torch.TorchModel" in names
    assert [name for name, module in names.items() if name not in objects and module not in modules] == []


def test_every_algorithm_is_in_the_table_of_papers():
    page = (ROOT / "docs" / "algorithms.rst").read_text()
    assert [name for name in ALGORITHMS if f"``{name}``" not in page] == []


MANUAL = [f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.rst"))]


@pytest.mark.parametrize("page", ["README.rst", "CHANGELOG.rst", "CONTRIBUTING.rst", *MANUAL])
def test_links_lead_to_files(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"`[^`<]+<([^>]+)>`_|^\.\. image:: (.+)$", text, re.MULTILINE)
    targets = [target for link in links for target in link if target and "://" not in target]
    assert targets or page != "README.rst"
    assert [target for target in targets if not ((ROOT / page).parent / target).is_file()] == []


def test_changelog_and_citation_have_this_version():
    assert f"\n{VERSION}\n---" in (ROOT / "CHANGELOG.rst").read_text()
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()


def test_docstrings_are_read():
    class Base:
        """One line.

        Attributes
        ----------
        first : int
            The first.
        """

    class Derived(Base):
        """One line.

        Parameters
        ----------
        second, third : float
            The others,
            on two lines.
        fourth

        Returns
        -------
        nothing
            Not a key.
        """

    others = "The others, on two lines."
    assert docstrings.descriptions(Derived) == {"first": "The first.", "second": others, "third": others}


def test_the_table_of_more_replicas_has_every_algorithm_within_3_points_of_downpour():
    section = (ROOT / "docs" / "algorithms.rst").read_text().partition("More replicas\n")[2].partition("\n-----")[0]
    lines = re.findall(r"^([a-z_]+)  .*  +(-?[\d.]+)$", section, re.MULTILINE)
    behind = {name: float(points) for name, points in lines}
    assert sorted(behind) == sorted({cls.name for cls in ALGORITHMS.values()} - {"stacking"})
    # Three full batches are three evaluations of an objective; a few rounds are as many steps.
    del behind["sandblaster"], behind["ringleader"]
    assert max(behind.values()) <= 3, behind


def test_every_contrast_of_papers_is_on_their_page_with_its_figure():
    page, figures = (ROOT / "docs" / "papers.rst").read_text(), ROOT / "docs" / "figures" / "papers"
    names = [path.stem for path in (ROOT / "benchmarks" / "contrasts").glob("[!_]*.py")]
    assert sorted(json.loads((figures / "findings.json").read_text())) == sorted(names)
    shown = {name for name in names if f".. figure:: figures/papers/{name}.png\n" in page}
    tables = {name for name in names if f".. findings: docs/figures/papers/findings.json {name}\n" in page}
    assert shown == tables == set(names) == {path.stem for path in figures.glob("*.png")}


def test_examples_of_pipelines():
    page = doctest.testfile(str(ROOT / "docs" / "cut_models.rst"), module_relative=False)
    assert all(each.attempted and not each.failed for each in (page, doctest.testmod(schedules)))


def test_the_table_of_cuts_lists_what_layers_declare():
    text = (ROOT / "docs" / "layers.rst").read_text()
    rows = re.findall(r"^``(\w+)`` {2,}(.+)$", text, re.MULTILINE)
    assert rows == [(name, ", ".join(LAYERS[name].cuts or ["samples"])) for name in sorted(LAYERS)]
    terms = {term for line in re.findall(r"^((?:\w+, )*\w+)\n    \S", text, re.MULTILINE) for term in line.split(", ")}
    assert terms >= {cut for layer in LAYERS.values() for cut in (*layer.cuts, "samples")}
