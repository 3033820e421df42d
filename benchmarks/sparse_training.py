"""Training of a PyTorch module with a table, against PyTorch's own: parts of the benchmark ``sparse.py``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness import QUICK, require
from training import Job, Run, last_json, profile, train

PEERS = Path(__file__).resolve().parent / "peers"
ROUNDS, EPOCHS = (1, 1) if QUICK else (3, 6)
BATCH = 64 if QUICK else 2048
#: Of the table, of a sample, and of the data.
SIZES = {"ROWS": 1000, "IDS": 4, "SAMPLES": 1024} if QUICK else {"ROWS": 1_000_000, "IDS": 26, "SAMPLES": 131_072}
WORKERS = 2


def alone() -> list[list[dict[str, Any]]]:
    """Return the speeds of one process, and of a plain loop."""
    return [compared({"mpidl": partial(own, 1), "PyTorch": partial(peer, 1)})]


def distributed() -> list[list[dict[str, Any]]]:
    """Return the speeds of two workers with a server, and of DistributedDataParallel in two processes."""
    return [compared({"mpidl, 4 ranks": partial(own, WORKERS + 2), "PyTorch DDP": partial(peer, WORKERS)})]


def ahead() -> list[list[dict[str, Any]]]:
    """Return the speeds of a worker that fetches rows ahead, and of one that doesn't."""
    names = {"SECONDS": 0.002 if QUICK else 0.02, "IDS": 2, "SAMPLES": 64 if QUICK else 8192}
    os.environ |= {f"AHEAD_{name}": str(value) for name, value in names.items()}
    return [compared({"ahead": partial(slow, 1), "not ahead": partial(slow, 0)}, needs=())]


def slow(depth: int) -> Run:
    """Train a model whose gradients and fetches take equally long."""
    job: Job = {
        "run": {"epochs": EPOCHS},
        "data": {"factory": "ahead:data", "batch": BATCH if QUICK else 64},
        "model": {"factory": "ahead:network"},
        "server": {"rule": "adagrad", "rate": 0.01},
        "tables": {"prefetch": depth},
    }
    return train(job, 3)


def compared(cases: dict[str, Callable[[], Run]], needs: Sequence[str] = ("torch",)) -> list[dict[str, Any]]:
    """Run cases in turn, round after round; return the medians of their speeds, and their ratios to the last one's."""
    for name in needs:
        require(name)
    make_importable()
    speeds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, case in cases.items():
            speeds[name].append(case()["samples_per_second"])
    *_, last = speeds.values()
    return [
        {"case": name, "samples/s": median(found), f"of {list(cases)[-1]}": median(found) / median(last)}
        for name, found in speeds.items()
    ]


def make_importable() -> None:
    """Have processes that are started import what they train, in its sizes here."""
    os.environ |= {f"BAGS_{name}": str(size) for name, size in SIZES.items()}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PEERS), os.environ.get("PYTHONPATH")]))


def by_phase() -> list[list[dict[str, Any]]]:
    """Return the processor time of two workers, a server and a coordinator by phase."""
    make_importable()
    return [profile(JOB, ["coordinator", "server", *["worker"] * WORKERS])]


#: mpidl's job.
JOB: Job = {
    "run": {"epochs": EPOCHS},
    "data": {"factory": "bags:data", "batch": BATCH},
    "model": {"factory": "bags:network", "loss": "cross_entropy"},
    "server": {"rule": "adam", "rate": 1e-3},
}


def own(ranks: int) -> Run:
    """Train with mpidl."""
    return train(JOB, ranks)


def peer(workers: int) -> Run:
    """Train with PyTorch."""
    return last_json([sys.executable, PEERS / "bags.py", "--workers", workers, "--epochs", EPOCHS, "--batch", BATCH])
