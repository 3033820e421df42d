"""Whole jobs are killed, or stopped by signals, at random moments, and resumed: every sample counts exactly once.

    make crashes
    python benchmarks/crashes.py [--kills 100] [--signals 40] [--seed 0] [--only NAME] [--deterministic]

Parameter i of a model counts the applications of sample i. Every algorithm that applies each gradient once, unchanged,
trains such models; some are so large that kills interrupt the writing of a checkpoint. SIGKILL hits all processes of a
job at once; SIGINT, SIGTERM, SIGUSR1 or SIGHUP hits one rank or the launcher, once or twice, while ranks start, train,
save or end. The job is resumed, on another number of ranks and servers, until it ends. The parameters of each
checkpoint are compared with the samples that its index has.

With --deterministic it trains a network on the digits instead, by every algorithm and with every wire format, without
and with kills and stops, and compares the last checkpoints bit by bit.

Prints errors and a table, and writes it to results/crashes.json. The exit code is 1 if there are errors.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import parse, save, table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "failures"))

from bitwise import MATRIX, differences
from counting import CASES
from killing import strike_runs

THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
#: Lines printed of the errors of a case.
SHOWN = 10


def main() -> None:
    """Kill and stop all jobs, print the table and save it."""
    parser = argparse.ArgumentParser(description="Jobs that are killed or stopped at random moments, and resumed.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--signals", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--cases", type=int, help="number of cases, from the first (default: all)")
    parser.add_argument("--deterministic", action="store_true", help="compare the bits of deterministic runs")
    options = parse(parser, kills=1, signals=0, cases=1)

    rows = list(deterministic(options) if options.deterministic else counting(options))
    print(table(rows))
    print(save("crashes_deterministic" if options.deterministic else "crashes", rows))
    sys.exit(not all(row["good"] == "yes" for row in rows))


def counting(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Kill and stop the jobs that count; yield a row for each, and one for all."""
    cases = [case for case in CASES if options.only in case.name][: options.cases]
    total: dict[str, Any] = {}
    for number, case in enumerate(cases):
        with places() as place:
            report = strike_runs(
                case, place, os.environ | THREADS, random.Random(f"{options.seed} {case.name}"),
                kills=part(options.kills, number, len(cases)), signals=part(options.signals, number, len(cases)),
            )  # fmt: skip
        figures = {
            "runs": report.runs, "kills": report.kills, "signals": report.signals, "resumes": report.resumes,
            "checkpoints": report.checkpoints, "wrong": len(report.wrong), "lost": report.lost,
            "doubled": report.doubled, "left": report.left, "failed": len(report.failed),
        }  # fmt: skip
        total = {name: total.get(name, 0) + figure for name, figure in figures.items()}
        tell(case.name, report.good, [*report.failed, *report.wrong])
        yield {"case": case.name, **figures, "good": "yes" if report.good else "no"}
    done = total["kills"] >= options.kills and total["signals"] >= options.signals
    faults = sum(total[name] for name in ("wrong", "lost", "doubled", "left", "failed"))
    yield {"case": "all", **total, "good": "yes" if done and not faults else "no"}


def part(whole: int, number: int, parts: int) -> int:
    """Return a part of a whole that is divided as evenly as possible."""
    return (number + 1) * whole // parts - number * whole // parts


def deterministic(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Kill and stop deterministic jobs; yield a row for each."""
    for setting in [setting for setting in MATRIX if options.only in str(setting)][: options.cases]:
        chance = random.Random(f"{options.seed} {setting}")
        strikes = chance.choice([1, 2])
        with places() as place:
            found = differences(setting, place(), os.environ | THREADS, chance, strikes)
        tell(str(setting), not found, found)
        yield {"job": str(setting), "strikes": strikes, "differ": len(found), "good": "no" if found else "yes"}


@contextmanager
def places() -> Iterator[Any]:
    """Yield a function that makes empty directories, which are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="crashes-") as directory:
        yield lambda: Path(tempfile.mkdtemp(dir=directory))


def tell(name: str, good: bool, lines: list[str]) -> None:
    """Print the outcome of a case."""
    shown = [f"  {line}" for line in lines[:SHOWN]] + ["  ..."] * (len(lines) > SHOWN)
    print("\n".join([f"{name}: {'good' if good else 'FAILED'}", *shown]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
