"""Settings of Sphinx for the manual: `make docs`."""

import sys
from pathlib import Path
from typing import Any

from mpidl.version import VERSION

sys.path.insert(0, str(Path(__file__).parent))
import docstrings

project = "mpidl"
author = "the mpidl developers"
project_copyright = f"2026, {author}"
release = version = VERSION

extensions = ["sphinx.ext.autodoc", "numpydoc"]
exclude_patterns = ["_build"]
# Single backticks in docstrings are links if Sphinx knows the name, else code.
default_role = "py:obj"
# As in NumPy's manual, types are in the docstrings and not in the signatures.
autodoc_typehints = "none"
# Large, and not needed for docstrings.
autodoc_mock_imports = ["torch", "jax"]
autodoc_default_options = {"exclude-members": "default_rule"}
numpydoc_show_class_members = False

html_theme = "furo"
html_title = f"mpidl {VERSION}"
html_copy_source = False


def skip(app: Any, what: str, name: str, member: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out methods that inherit their docstring: it is in the manual once."""
    return True if what == "class" and callable(member) and not getattr(member, "__doc__", None) else None


def escape(app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """Keep docutils from taking text of a docstring for markup."""
    lines[:] = docstrings.escape("\n".join(lines)).split("\n")


def setup(app: Any) -> None:
    """Connect the functions above."""
    app.connect("autodoc-skip-member", skip)
    app.connect("autodoc-process-docstring", escape, priority=400)  # before numpydoc
