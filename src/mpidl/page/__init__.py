"""The page of runs: one HTML file with their curves, ranks, events and configurations, which needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpidl.errors import UsageError
from mpidl.extras import require
from mpidl.history import Run
from mpidl.paths import open_regular, whole

#: What the first bytes of a page have, and of how many.
SIGN, BEGINNING = b'<meta name="generator" content="mpidl report">', 200


def write(runs: Sequence[Run], file: Path, force: bool = False) -> None:
    """Write the page of runs: of one, or of several whose curves are drawn over each other.

    Parameters
    ----------
    runs : sequence of Run
        Those of `mpidl.open`.
    file : Path
        An earlier page is replaced.
    force : bool
        Whether a file that is no such page is replaced, too.

    Raises
    ------
    UsageError
        Bokeh isn't installed, or the file can't be written, or is no page and `force` isn't set.
    """
    require("bokeh", "report")
    from mpidl.page.writing import html

    if file.exists() and not force and not _is_page(file):
        raise UsageError(f"{file}: exists and is no page of mpidl report, expected --force to replace it")
    text = html(runs)
    with whole(file) as partial:
        partial.write_text(text, encoding="utf-8")


def _is_page(file: Path) -> bool:
    try:
        with open_regular(file) as opened:
            return SIGN in opened.read(BEGINNING)
    except OSError:
        return False
