"""Shared by the benchmarks: options, timing in turn, ranks, a table for people, JSON and HDF5 for machines."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

#: Whether the smallest form of a benchmark was asked for, which takes seconds and shows that it works. Its figures mean
#: nothing, and are kept apart.
QUICK = "--quick" in sys.argv[1:]
RESULTS = Path(__file__).parent / "results" / ("quick" if QUICK else "")


def parse(parser: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """Return the command line's options; with ``--quick``, `quick` has the defaults of some."""
    parser.add_argument("--quick", action="store_true", help="run the smallest form, which only shows that it works")
    if QUICK:
        parser.set_defaults(**quick)
    return parser.parse_args()


def interleave(cases: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Time the cases in turn, A B C A B C ..., so that a slow phase of the machine affects all of them.

    Parameters
    ----------
    cases
        Functions by name.
    rounds
        Number of calls of each.

    Returns
    -------
    dict
        Seconds of each call, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def require(*packages: str) -> None:
    """End with a line that says how to install missing packages, before anything is measured."""
    if missing := [each for each in packages if importlib.util.find_spec(each) is None]:
        sys.exit(f"not installed: {', '.join(missing)}, expected `pip install -r benchmarks/requirements.txt`")


def pyplot() -> Any:
    """Return matplotlib's pyplot, which draws into files and needs no display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as drawing

    return drawing


def start(ranks: int, *arguments: str, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run this benchmark on ranks of this machine, one thread each, with further `arguments`.

    The `options` are those of `subprocess.run`.
    """
    return start_python(ranks, [*sys.orig_argv[1:], *arguments], **options)


def start_python(
    ranks: int, arguments: list[str], before: Sequence[str] = (), **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run Python with `arguments` on ranks of this machine, one thread each, by way of the command `before` it.

    The `options` are those of `subprocess.run`.
    """
    from mpidl.launch.command import command

    words, variables = command(ranks, arguments)
    place = words.index(sys.executable)
    variables |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.run([*words[:place], *before, *words[place:]], env=variables, **options)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as reStructuredText: a column per key, numbers to the right, "-" for a missing value."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(isinstance(row.get(column), (int, float, type(None))) for row in rows) for column in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    ]
    rule = "  ".join("=" * width for width in widths)
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def save(name: str, rows: list[dict[str, Any]]) -> Path:
    """Write the rows, with their machine, to ``results/NAME.json``; return its path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    record = {"benchmark": name, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "machine": _machine(), "rows": rows}
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def save_hdf5(name: str, tables: dict[str, list[dict[str, Any]]]) -> Path:
    """Write tables to ``results/NAME.h5``, a dataset per column, NaN for a missing number; return its path."""
    path = RESULTS / f"{name}.h5"
    with h5py.File(path, "w") as file:
        for title, rows in tables.items():
            for column in dict.fromkeys(key for row in rows for key in row):
                values = [row.get(column, np.nan) for row in rows]
                text = any(isinstance(value, str) for value in values)
                key = f"{title}/{column.replace('/', ' per ')}"
                file.create_dataset(key, data=values, dtype=h5py.string_dtype() if text else None)
    return path


def _cell(value: Any) -> str:
    """Return a value as text: a float with three digits, or more before the point."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"
    return str(value)


def _machine() -> dict[str, Any]:
    """Return the machine's processor and cores, and the version of Python."""
    processor = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": processor, "cores": os.cpu_count(), "python": platform.python_version()}
