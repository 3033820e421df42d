"""Loops of one's own: their speed beside `mpidl.train`, and jobs that are killed in them.

    python benchmarks/loops.py [--only speed resume death] [--data data/fashion-mnist] [--rounds 5] [--kills 20]

speed
    Samples per second of a PyTorch module, 784-1024-1024-10, with two workers, by a loop and by `mpidl.train` in turn.

resume
    SIGKILL for all processes at random moments of a deterministic run with three workers, whose loops draw from
    generators that they save; then the run continues. Its last checkpoint is compared bit by bit with an unhurt run's.

death
    SIGKILL for one worker at a random moment; how often each sample was used is counted.

Prints tables, and writes them to results/loops.json. The exit code is 1 if bits or counts are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import mpidl
from harness import QUICK, parse, save, table
from training import UNITS, add_data

Row = dict[str, Any]
SCRIPT = Path(__file__).resolve().parent / "peers" / "own_loop.py"
STEPS, EPOCHS = (60, 2) if QUICK else (600, 8)


def main() -> None:
    """Run the parts, and print and save their tables."""
    parser = argparse.ArgumentParser(description="Loops of one's own: their speed, and what outlives deaths.")
    add_data(parser)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each for speed")
    parser.add_argument("--epochs", type=int, default=3, help="of each of these runs")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parse(parser, rounds=1, epochs=1, kills=1, only=["resume", "death"])
    found = {name: list(PARTS[name](options)) for name in options.only}
    for rows in found.values():
        print(table(rows))
    print(save("loops", found))
    sys.exit(not all(row.get("good", "yes") == "yes" for rows in found.values() for row in rows))


def speed(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the speeds of a loop and of `mpidl.train`."""
    speeds: dict[str, list[float]] = {"loop": [], "train": []}
    for _ in range(options.rounds):
        for way, found in speeds.items():
            with tempfile.TemporaryDirectory() as place:
                words = ("speed", way, options.data.resolve(), options.epochs, 128, UNITS[0], place)
                found.append(finished(start(4, *words))["samples_per_second"])
    for way, found in speeds.items():
        yield {"way": way, "samples/s": median(found), "of train": median(found) / median(speeds["train"])}


def resume(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each run that was killed and continued."""
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        expected = parameters(finished(start(6, "state", "through", STEPS, place)))
        lasted = time.monotonic() - began
        for number in range(options.kills):
            kills = 0
            while True:
                job = start(6, "state", f"struck-{number}", STEPS, place)
                try:
                    job.wait(dice.uniform(0.3, 1.0) * lasted if kills < 2 else None)
                    break
                except subprocess.TimeoutExpired:
                    os.killpg(job.pid, signal.SIGKILL)
                    job.wait()
                    kills += 1
            same = parameters(finished(job)) == expected
            yield {"run": number, "kills": kills, "good": "yes" if same else "no"}


def parameters(summary: dict[str, Any]) -> bytes:
    """Return the bits of the parameters of a finished run."""
    return mpidl.load(summary["run_dir"]).tensors["parameters"].tobytes()


def death(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each run of which a worker was killed."""
    dice = random.Random(options.seed)
    for number in range(options.kills):
        point, passed = dice.choice(("ticket-taken", "gradient-computed", "data-written")), dice.randrange(1, 60)
        with tempfile.TemporaryDirectory() as place:
            summary = finished(
                start(6, "count", "struck", EPOCHS, place, MPIDL_DIE=f"{dice.randrange(3, 6)}:{point}:{passed}")
            )
        good = summary["counts"] == [EPOCHS]
        yield {"run": number, "point": point, "deaths": summary["failures"], "good": "yes" if good else "no"}


def start(ranks: int, *words: Any, **variables: str) -> subprocess.Popen[str]:
    """Start the script on ranks, in a process group of its own."""
    command = [sys.executable, "-m", "mpidl", "run", SCRIPT, "-n", ranks, *words]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        [str(word) for word in command], env=os.environ | threads | variables, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finished(job: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the summary that a job's script prints last."""
    output, errors = job.communicate()
    if job.returncode:
        sys.exit(f"{errors}\nexit code {job.returncode}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


PARTS = {"speed": speed, "resume": resume, "death": death}

if __name__ == "__main__":
    main()
