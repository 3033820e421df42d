"""A run as a small piece of HTML, which notebooks show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from mpidl.errors import escaped, shown
from mpidl.history.columns import Columns

#: Size of the curve in pixels, and most points of it.
WIDTH, HEIGHT, POINTS = 360, 120, 360
#: Figures of a curve: the first of these that a run has.
CURVES = ("iteration.objective", "train_loss", "validation_loss", "test_loss")
#: Figures of the table, besides losses and accuracies.
FIGURES = ("epoch", "samples", "samples_per_second", "staleness.mean")
#: Length of a name.
NAME = 80


def curve(metrics: Columns) -> tuple[str, np.ndarray, np.ndarray] | None:
    """Return a run's most telling curve: the figure's name, samples and values, all finite; None if there is none."""
    for name in CURVES:
        known = metrics.known("samples") & metrics.known(name)
        if known.any():
            return name, metrics["samples"][known], metrics[name][known]
    return None


def as_html(
    name: str, state: str, summary: Mapping[str, Any] | None, metrics: Columns, notes: Sequence[str] = ()
) -> str:
    """Return a run's name and state, its last figures and its curve, and notes on them."""
    evaluated = [key for key in metrics if key.endswith(("_loss", "_accuracy"))]
    rows = {key: metrics.last(key) for key in (*FIGURES, *evaluated)} | {"seconds": (summary or {}).get("seconds")}
    cells = "".join(
        f"<tr><th>{_text(key)}</th><td>{_number(value)}</td></tr>"
        for key, value in rows.items()
        if isinstance(value, int | float)
    )
    drawn = "" if (found := curve(metrics)) is None else _drawn(*found)
    said = "".join(f"<p>{_text(note)}</p>" for note in notes)
    return f"<div><p><b>{_text(name)}</b>: {state}</p>{drawn}<table>{cells}</table>{said}</div>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _text(text: str) -> str:
    return escape(escaped(shown(text, NAME)))


def _drawn(name: str, samples: Sequence[float] | np.ndarray, values: np.ndarray) -> str:
    """Return a curve as SVG, in the colour of the text around it."""
    chosen = np.unique(np.linspace(0, len(values) - 1, POINTS).astype(int))
    across, up = (_scaled(np.asarray(each)[chosen]) for each in (samples, values))
    points = " ".join(f"{WIDTH * x:.1f},{HEIGHT * (1 - y):.1f}" for x, y in zip(across, up, strict=True))
    return (
        f'<svg viewBox="-5 -5 {WIDTH + 10} {HEIGHT + 10}" width="{WIDTH}" role="img" aria-label="{_text(name)}">'
        f"<title>{_text(name)}: {_number(values[0])} to {_number(values[-1])}</title>"
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )


def _scaled(values: np.ndarray) -> np.ndarray:
    """Return numbers from 0 to 1, in proportion; halves, so that they can't overflow."""
    halves = values / 2
    low, high = halves.min(), halves.max()
    return (halves - low) / (high - low) if high > low else np.full(len(values), 0.5)
