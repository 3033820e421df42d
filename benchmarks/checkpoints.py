"""The cost of checkpoints: samples/s with one every 5 s and with none, and seconds from SIGTERM to the job's end.

    python benchmarks/checkpoints.py

Trains jobs/distbelief_speech.toml, DistBelief's speech network of 41,777,152 parameters, on 4 ranks, alternately with
and without checkpoints. Then sends the launcher SIGTERM during training, so that the job saves and stops. Prints
tables, and writes them to results/checkpoints.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import QUICK, parse, save, table
from mpidl.config import toml
from training import Job, fashion, few_images, train, with_sections

SPEECH = Path(__file__).parent.parent / "jobs" / "distbelief_speech.toml"
RANKS = 4
EVERY = {"none": 1e9, "every 5 s": 5.0}


def main() -> None:
    """Run both, print the tables and save them."""
    parser = argparse.ArgumentParser(description="The cost of checkpoints, and of the last one.")
    parser.add_argument("--steps", type=int, default=50, help="gradients of a run")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="training before the signal")
    options = parse(parser, steps=30, rounds=1, seconds=0.1)

    job = with_sections(fashion(few_images()) if QUICK else toml.read(SPEECH), topology={"servers": options.servers})
    speeds, stops = while_training(job, options), at_the_end(job, options)
    print(table(speeds), table(stops), sep="\n\n")
    print(save("checkpoints", [*speeds, *stops]))


def while_training(job: Job, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train with and without checkpoints in turn; return a row for each."""
    speeds: dict[str, list[float]] = {case: [] for case in EVERY}
    seconds, saved = dict.fromkeys(EVERY, 0.0), dict.fromkeys(EVERY, 0)
    for _ in range(options.rounds):
        for case, every in EVERY.items():
            with tempfile.TemporaryDirectory() as directory:
                limited = with_sections(job, run={"steps": options.steps}, checkpoint={"every": every})
                run = train(limited, RANKS, keep=Path(directory))
                events = (Path(run["run_dir"]) / "events.jsonl").read_text().splitlines()
            speeds[case].append(run["samples_per_second"])
            seconds[case] = run["seconds"]
            # The first and the last state are always saved.
            saved[case] = sum(json.loads(event)["event"] == "checkpoint" for event in events) - 2
            print(f"{case}: {speeds[case][-1]:.0f} samples/s", file=sys.stderr, flush=True)
    best = median(speeds["none"])
    return [
        {
            "checkpoints": case,
            "samples/s": median(speeds[case]),
            "of none": median(speeds[case]) / best,
            "each": " ".join(f"{speed:.0f}" for speed in speeds[case]),
            "seconds": seconds[case],
            "saved": saved[case],
        }
        for case in EVERY
    ]


def at_the_end(job: Job, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Stop jobs by SIGTERM during training; return a row for each."""
    rows = []
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory:
            seconds, code, size = stop(job, Path(directory), options.seconds)
        rows.append({"stop": number, "seconds to exit": seconds, "exit code": code, "MB saved": size / 1e6})
        print(f"SIGTERM to exit: {seconds:.2f} s, exit code {code}", file=sys.stderr, flush=True)
    return rows


def stop(job: Job, directory: Path, training: float) -> tuple[float, int, int]:
    """Stop a job during training; return seconds to its end, exit code, and bytes of its last checkpoint."""
    path = directory / "job.toml"
    endless = {"name": "job", "dir": str(directory), "steps": 10**6, "report": 1.0}
    path.write_text(toml.dump(with_sections(job, run=endless, checkpoint={"every": 1e9})))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "mpidl", "train", str(path), "-n", str(RANKS)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not trains(directory / "job") and process.poll() is None:
            time.sleep(0.1)
        time.sleep(training)
        started = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        code = process.wait()
        seconds = time.perf_counter() - started
    newest = max((directory / "job" / "checkpoints").glob("[0-9]*"), key=lambda checkpoint: int(checkpoint.name))
    return seconds, code, sum(file.stat().st_size for file in newest.iterdir()) if int(newest.name) else 0


def trains(run: Path) -> bool:
    """Tell whether a run has used samples and has saved its first state."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return bool(lines) and json.loads(lines[-1])["samples"] > 0 and (run / "checkpoints" / "0").exists()


if __name__ == "__main__":
    main()
