"""Contrasts that papers have published, reproduced on the virtual cluster: `make papers`.

    pip install -r benchmarks/requirements.txt
    python benchmarks/papers.py [--only NAME ...] [--to DIRECTORY]

Runs every file in benchmarks/contrasts, on all cores. Prints a table for each with what the paper says, what was seen,
and whether that agrees; writes it to findings.json, and a figure to NAME.png, in benchmarks/results/papers. The
manual's page shows those in docs/figures/papers: after a change, run it with `--to docs/figures/papers`, and then
`python docs/generate.py`. With --only, the other contrasts' findings stay in the file.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from contrasts import Case, Contrast
from harness import QUICK, RESULTS, parse, pyplot, require, table

NAMES = [path.stem for path in sorted((Path(__file__).parent / "contrasts").glob("[!_]*.py"))]


def main() -> None:
    """Run the contrasts, print and save their findings, and draw their figures."""
    parser = argparse.ArgumentParser(description="Contrasts that papers have published, on the virtual cluster.")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="some of the contrasts")
    parser.add_argument(
        "--to", type=Path, default=RESULTS / "papers", help="directory for what is written (%(default)s)"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="runs at the same time (%(default)s)")
    options = parse(parser, processes=1)
    if not QUICK:
        require("matplotlib")

    options.to.mkdir(parents=True, exist_ok=True)
    # Forked processes have imported the package already.
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("fork")) as pool:
        started = {}
        for name in options.only:
            contrast: Any = import_module(f"contrasts.{name}")
            cases = contrast.cases(QUICK)
            started[name] = contrast, {case: pool.submit(timed, call) for case, call in cases.items()}
        for name, (contrast, futures) in started.items():
            finish(name, contrast, futures, options.to)


def timed(case: Case) -> tuple[Any, float]:
    """Return what a case returns, and the seconds of CPU time that it took."""
    start = time.process_time()
    return case(), time.process_time() - start


def finish(name: str, contrast: Contrast, futures: dict[str, Future[tuple[Any, float]]], directory: Path) -> None:
    """Wait for the cases of a contrast; print and save its findings, and draw its figure."""
    done = {case: future.result() for case, future in futures.items()}
    runs, seconds = {case: run for case, (run, _) in done.items()}, sum(each for _, each in done.values())
    found = [finding._asdict() for finding in contrast.findings(runs)]
    print(f"{contrast.TITLE}: {seconds:.1f} s of CPU time")
    print(table([row | {"holds": "yes" if row["holds"] else "no"} for row in found]), flush=True)
    path = directory / "findings.json"
    saved = json.loads(path.read_text()) if path.exists() else {}
    saved[name] = {"title": contrast.TITLE, "cpu_seconds": round(seconds, 1), "findings": found}
    path.write_text(json.dumps(dict(sorted(saved.items())), indent=2) + "\n")
    if find_spec("matplotlib") is None:
        print("no figure: Matplotlib isn't installed", file=sys.stderr)
        return
    figure = pyplot().figure(figsize=(9, 4.5), layout="constrained")
    figure.suptitle(contrast.TITLE)
    contrast.draw(figure, runs)
    figure.savefig(directory / f"{name}.png", dpi=100)
    pyplot().close(figure)
    print(f"written to {directory / f'{name}.png'}\n", flush=True)


if __name__ == "__main__":
    main()
