"""The manual, the README and the classes agree. None of this needs Sphinx."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpidl.algorithms import ALGORITHMS
from mpidl.config import SECTIONS
from mpidl.data import SOURCES
from mpidl.nn import LAYERS
from mpidl.rules import RULES
from mpidl.version import VERSION

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "extensions"))
import docstrings  # noqa: E402


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
    assert [name for name in SECTIONS if f".. keys:: mpidl.config.SECTIONS.{name}\n" not in page] == []


def test_every_algorithm_is_in_the_table_of_papers():
    page = (ROOT / "docs" / "algorithms.rst").read_text()
    assert [name for name in ALGORITHMS if f"``{name}``" not in page] == []


@pytest.mark.parametrize("page", ["README.rst", "CHANGELOG.rst", "CONTRIBUTING.rst"])
def test_links_lead_to_files(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"`[^`<]+<([^>]+)>`_|^\.\. image:: (.+)$", text, re.MULTILINE)
    targets = [target for link in links for target in link if target and "://" not in target]
    assert targets or page != "README.rst"
    assert [target for target in targets if not (ROOT / target).is_file()] == []


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
