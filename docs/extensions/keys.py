"""Directives that generate the tables of a configuration's keys from its classes, so that the manual is up to date.

``.. keys:: PATH``
    What PATH names: a dataclass (``mpidl.data.Augmentation``), an item of a mapping (``mpidl.config.SECTIONS.run``),
    whose sections within it follow, or a whole registry (``mpidl.rules.RULES``), each class under a heading of its own.
    The option ``leave-out`` names a base class whose keys are left out.
``.. names:: PATH``
    The names in a mapping, with the first line of each docstring unless all have the same.
``.. keywords:: PATH``
    The keywords of a function in a mapping, and the section or the key that each stands for.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar

import docstrings
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


def resolve(path: str) -> Any:
    """Return the object at a dotted path: a module, then attributes or a mapping's items."""
    first, *rest = path.split(".")
    found = import_module(first)
    for depth, name in enumerate(rest, start=2):
        if isinstance(found, Mapping):
            found = found[name]
        elif hasattr(found, name):
            found = getattr(found, name)
        else:
            found = import_module(".".join(path.split(".")[:depth]))
    return found


class Keys(SphinxDirective):
    """Tables of keys."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"leave-out": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Return the tables."""
        path = self.arguments[0]
        found = resolve(path)
        leave_out = resolve(self.options["leave-out"]) if "leave-out" in self.options else None
        if isinstance(found, Mapping):
            lines = _registry(found, leave_out)
        elif isinstance(resolve(path.rpartition(".")[0]), Mapping):
            lines = _section(path.rpartition(".")[2], found)
        else:
            lines = _table(found, leave_out)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


class Names(SphinxDirective):
    """A list of names."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the list."""
        found: Mapping[str, Any] = resolve(self.arguments[0])
        texts = {name: (inspect.getdoc(value) or "").partition("\n")[0] for name, value in found.items()}
        if len(set(texts.values())) == 1:
            lines = [", ".join(f"``{name}``" for name in texts)]
        else:
            lines = [line for name, text in texts.items() for line in (f"``{name}``", f"    {text}")]
        return self.parse_text_to_nodes("\n".join(lines))


class Keywords(SphinxDirective):
    """A table of keywords."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        lines = [".. list-table::", "   :header-rows: 1", "", "   * - Keyword", "     - Section or key"]
        for name, (_, place) in resolve(self.arguments[0]).items():
            lines += [f"   * - ``{name}``", f"     - ``{place if '.' in place else f'[{place}]'}``"]
        return self.parse_text_to_nodes("\n".join(lines))


def _registry(registry: Mapping[str, type], leave_out: type | None) -> Iterator[str]:
    for cls in dict.fromkeys(registry.values()):
        title = ", ".join(f"``{name}``" for name, other in registry.items() if other is cls)
        yield from (title, "^" * len(title), "", docstrings.prose(cls), "")
        yield from _table(cls, leave_out)


def _section(name: str, cls: type) -> Iterator[str]:
    yield from _table(cls, None)
    for key, within, repeated in docstrings.subsections(cls):
        title = f"[[{name}.{key}]]" if repeated else f"[{name}.{key}]"
        yield from _table(within, None, f"``{title}``")


def _table(cls: type, leave_out: type | None, title: str = "") -> Iterator[str]:
    rows = docstrings.keys(cls, leave_out)
    if not rows:
        return
    yield from (f".. list-table:: {title}".rstrip(), "   :header-rows: 1", "   :widths: 18 22 14 46", "")
    for row in [("Key", "Value", "Default", "Description"), *map(_cells, rows)]:
        for number, cell in enumerate(row):
            yield f"   {' ' if number else '*'} - {cell}".rstrip()
    yield ""


def _cells(key: docstrings.Key) -> tuple[str, str, str, str]:
    names = ", ".join(f"``{name}``" for name in key.names)
    default = f"``{key.default}``" if key.default not in ("", "required") else key.default
    return names, key.values, default, key.description


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("keys", Keys)
    app.add_directive("names", Names)
    app.add_directive("keywords", Keywords)
    return {"parallel_read_safe": True}
