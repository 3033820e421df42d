"""The processor time that a rank needs before it trains, by role, beside that of a rank that only imports libraries.

    python benchmarks/start.py [--rounds 5] [--paths]

A coordinator, a server and two workers start to train 64-128-64-10 on the digits; compiled code is in its cache. The
limit is the same ranks that import NumPy and mpi4py, and Numba, too, except the coordinator, and initialise MPI. Prints
medians over rounds, of one and the other in turn: seconds of processor time until the job is built and until training
begins, and with ``--paths`` (which needs strace) the system calls that take a path. Writes results/start.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from harness import parse, save, start_python, table

ROLES = ("coordinator", "server", "worker", "worker")
RANK = Path(__file__).parent / "peers" / "start_rank.py"


def main() -> None:
    """Start ranks in turn, print the table and save it."""
    parser = argparse.ArgumentParser(description="Processor time of ranks before they train.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--paths", action="store_true", help="count system calls with a path, too")
    options = parse(parser, rounds=1)
    started: list[list[dict[str, float]]] = []
    limits: list[list[dict[str, float]]] = []
    for _ in range(options.rounds + 1):
        started.append(start("train", options.paths))
        limits.append(start("import", options.paths))
    rows = []
    for rank, role in enumerate(ROLES):
        own, limit = ([each[rank] for each in found[1:]] for found in (started, limits))
        middle = {name: median(each[name] for each in own) for name in own[0]}
        bare = median(each["training begins (s)"] for each in limit)
        rows.append({"rank": role} | middle | {"limit (s)": bare, "of it": middle["training begins (s)"] / bare})
    print(table(rows))
    print(save("start", rows))


def start(what: str, paths: bool) -> list[dict[str, float]]:
    """Start the ranks; return what each has measured."""
    with tempfile.TemporaryDirectory() as directory:
        traced = ["strace", "-f", "-qq", "-e", "trace=%file", "-o", f"{directory}/paths", "-ff"] if paths else []
        start_python(len(ROLES), ["-P", str(RANK), what, directory], traced, check=True, stdout=subprocess.DEVNULL)
        found = [json.loads(Path(directory, f"{rank}.json").read_text()) for rank in range(len(ROLES))]
        for each in found:
            process = each.pop("process")
            if paths:
                each["paths"] = len(Path(directory, f"paths.{process}").read_text().splitlines())
        return found


if __name__ == "__main__":
    main()
