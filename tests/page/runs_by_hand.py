"""Directories of runs with records of the test's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

CONFIG = """[run]
name = "hand"
seed = 3
metrics = []

[data]
source = "digits"
batch = 64

[[model.layer]]
type = "dense"
units = 10

[algorithm]
name = "downpour"

[server]
rule = "adagrad"
rate = 0.02

[topology]
servers = 1
"""
#: When the run began, in seconds since the epoch.
BEGAN = 1.7e9


def record(time: float, samples: float, **others: object) -> dict[str, object]:
    """Return a record with what all have."""
    return {
        "time": time, "samples": samples, "epoch": samples / 1000, "train_loss": 1 / (1 + time), "test_loss": None,
        "test_accuracy": None, "samples_per_second": 100.0, "server_load": 0.1, "waiting": 0.2, "pushes": samples / 10,
        "staleness": {"mean": 1.0, "p50": 1, "p99": 2, "max": 2}, "staleness_histogram": [samples, 2 * samples],
        "bytes_pushed": 1e6 * time, "bytes_fetched": 2e6 * time, "bytes_moved": 0, "server_rate": 0.02,
        "shares": {"computing": 0.5, "pushing": 0.1, "fetching": 0.1, "waiting": 0.2, "rest": 0.1},
        "unix_time": BEGAN + time, **others,
    }  # fmt: skip


def make(
    directory: Path,
    records: list[dict[str, object]] | None = None,
    events: list[dict[str, object]] | None = None,
    summary: dict[str, object] | None = None,
    status: dict[str, object] | None = None,
    config: str = CONFIG,
) -> Path:
    """Make the directory of a run, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.toml").write_text(config)
    for name, rows in (("metrics", records or []), ("events", events or [])):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    for name, content in (("summary", summary), ("status", status)):
        if content is not None:
            (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def usual(rows: int = 20) -> list[dict[str, object]]:
    """Return the records of a run that is evaluated at every fifth."""
    return [
        record(
            float(row),
            100.0 * row,
            **({"test_loss": 2 / (1 + row // 5), "test_accuracy": 1 - 1 / (1 + row // 5)} if row >= 5 else {}),
        )
        for row in range(1, rows + 1)
    ]


def event(kind: str, after: float, **details: object) -> dict[str, object]:
    """Return an event some seconds after the run began."""
    return {"time": BEGAN + after, "event": kind, "rank": 0, "role": "coordinator", **details}


def many(rows: int) -> list[dict[str, object]]:
    """Return the records of a long run with noise in all figures."""
    noise = np.random.default_rng(1).random((rows, 6)).tolist()
    return [
        record(
            0.5 * row, 64.0 * row, train_loss=a + 1, test_loss=b + 1, test_accuracy=c, samples_per_second=1e4 * d,
            gradient_norm=e, server_load=f, waiting=f * e, server_rate=0.1 * a,
        )
        for row, (a, b, c, d, e, f) in enumerate(noise, 1)
    ]  # fmt: skip
