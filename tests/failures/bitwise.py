"""Deterministic runs that are killed or stopped, and resumed, end with the same bits as those that nobody stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
from running_job import RunningJob

from mpidl.config import toml
from mpidl.sparse.server_tables import OPEN
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.table_files import BY_ROW, COUNTS, TOUCHES, saved_tables

WIRES = ("fp32", "bf16", "int8", "topk:0.1", "onebit")
WIRES_OF_FETCHES = ("bf16", "int8", "topk:0.1", "onebit")
#: They don't divide the data's 1437 samples evenly, nor these the batches of a portion.
REPLICAS, BATCH, PORTION = 3, 32, 64
#: The layers before a network's others, if it has a table.
ROWS: tuple[dict[str, Any], ...] = (
    {"type": "embedding", "sparse": True, "dimension": 4, "scale": 0.1},
    {"type": "flatten"},
)


@dataclass(frozen=True)
class Setting:
    """A deterministic job.

    Attributes
    ----------
    algorithm, rule : dict
        Its sections; no rule where the algorithm leaves no choice.
    servers : int
        0 where the algorithm takes none.
    model : module, optional
        A module whose `make` builds the model; a small network by default.
    tables : dict, optional
        The section of a network with a table of ids; None for one without.
    full_every : int
        Of its checkpoints in a row, one has all rows.
    """

    algorithm: dict[str, Any]
    rule: dict[str, Any] = field(default_factory=dict)
    servers: int = 1
    model: ModuleType | None = None
    tables: dict[str, Any] | None = None
    full_every: int = 1

    def __str__(self) -> str:
        keys = [f"{key} {value}" for key, value in self.algorithm.items() if key != "name"]
        rule = [self.rule["rule"]] if self.rule else []
        tables = [] if self.tables is None else ["tables", *(f"{key} {value}" for key, value in self.tables.items())]
        return ", ".join([self.algorithm["name"], *keys, *rule, *tables, f"{self.servers} servers"])

    def write(self, directory: Path) -> Path:
        """Write the configuration; return its path."""
        hidden = {"type": "dense", "units": 24, "activation": "relu"}
        model: dict[str, Any] = {"layer": [hidden, {"type": "dense", "units": 10}]}
        data: dict[str, Any] = {"source": "digits"}
        if self.tables is not None:
            model = {"layer": [*ROWS, hidden, {"type": "dense", "units": 1}], "loss": "one_vs_all_logistic"}
            data = {"source": "arrays", "path": "ids.npz"}
            np.savez(directory / "ids.npz", **_samples_of_ids())
        if self.model is not None:
            source = Path(str(self.model.__file__))
            (directory / source.name).write_text(source.read_text())
            model = {"factory": f"{source.stem}:make"}
        path = directory / "digits.toml"
        path.write_text(
            toml.dump(
                {
                    "run": {"name": "digits", "epochs": 2, "deterministic": True},
                    "data": {**data, "batch": BATCH, "portion": PORTION},
                    "model": model,
                    "algorithm": self.algorithm,
                    "server": self.rule,
                    "tables": self.tables or {},
                    "topology": {"servers": self.servers} if self.servers else {},
                    "checkpoint": {"every": 0.2, "full_every": self.full_every},
                    "device": {"kind": "cpu"},
                    "debug": {"gradient_seconds": 0.04, "slow_worker": 1, "slow_factor": 1.5},
                }
            )
        )
        return path


def _samples_of_ids() -> dict[str, np.ndarray]:
    """Return arrays of data whose ids follow Zipf's law."""
    columns, random = {}, np.random.default_rng(0)
    for split, samples in (("train", 1437), ("test", 64)):
        columns[f"{split}/x"] = ids = random.zipf(1.1, (samples, 26)) % 3000
        columns[f"{split}/y"] = (ids.sum(1, keepdims=True) % 3 == 0).astype(np.float32)
    return columns


ADAM, MOMENTUM = {"rule": "adam", "rate": 0.01}, {"rule": "momentum", "rate": 0.02}
ADAGRAD, RMSPROP = {"rule": "adagrad", "rate": 0.02}, {"rule": "rmsprop", "rate": 0.002}
NESTEROV = {"rule": "nesterov", "rate": 0.3}
#: Without the wire: every algorithm that has servers and can be deterministic.
THROUGH_SERVERS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"name": "downpour"}, ADAM),
    ({"name": "downpour", "n_push": 3, "n_fetch": 2}, MOMENTUM),
    ({"name": "downpour", "n_push": 2, "n_fetch": 3, "rate": 0.05}, ADAGRAD),
    ({"name": "downpour", "n_push": 3, "n_fetch": 3, "schedule": "literal", "rate": 0.05}, ADAM),
    ({"name": "downpour", "max_staleness": 1}, RMSPROP),
    ({"name": "adag", "window": 3}, {}),
    ({"name": "aeasgd", "window": 3}, {}),
    ({"name": "agn", "window": 3}, {}),
    ({"name": "backup_sync", "backup": 1}, MOMENTUM),
    ({"name": "dcasgd"}, ADAGRAD),
    ({"name": "diloco", "asynchronous": True, "window": 3, "delay": 4}, NESTEROV),
    ({"name": "diloco", "quorum": REPLICAS, "window": 3}, NESTEROV),
    ({"name": "dynsgd", "window": 3}, {}),
    ({"name": "eamsgd", "tau": 3}, {}),
    ({"name": "easgd", "tau": 2}, {}),
    ({"name": "softsync"}, ADAM),
    ({"name": "rescaled", "n_push": 2, "n_fetch": 2}, MOMENTUM),
    ({"name": "ringleader"}, ADAM),
    ({"name": "softsync", "n": 2, "modulate": False}, MOMENTUM),
    ({"name": "ssp", "bound": 2}, RMSPROP),
)
WITHOUT_SERVERS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"name": "averaging", "tau": 3}, {}),
    ({"name": "averaging", "tau": 4, "inner": "adam", "rate": 0.005}, {}),
    ({"name": "diloco", "window": 4}, NESTEROV),
    ({"name": "diloco", "window": 6, "fragments": 2, "overlap": 4, "mixing": 0.5}, NESTEROV),
    ({"name": "easgd", "asynchronous": False, "tau": 2}, {}),
    ({"name": "fedprox", "window": 3, "mu": 0.1}, {}),
    ({"name": "sync"}, ADAM),
)
SGD = {"rule": "sgd", "rate": 0.05}
#: With a table: rows that have not been pushed, that have been gathered, that are evicted, and that wait for admission.
WITH_TABLES: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
    ({"name": "downpour"}, SGD, {}),
    ({"name": "downpour", "n_push": 3, "n_fetch": 2}, ADAGRAD, {}),
    ({"name": "downpour", "wire": "bf16", "wire_fetch": "int8"}, ADAM, {}),
    ({"name": "downpour"}, ADAGRAD, {"max_rows": 800}),
    ({"name": "downpour", "n_push": 3}, SGD, {"max_rows": 600, "admission": 3}),
    ({"name": "softsync"}, ADAGRAD, {"max_age": 10}),
    ({"name": "softsync", "n": 2}, SGD, {"admission": 0.3, "max_rows": 500}),
    ({"name": "backup_sync", "backup": 1}, ADAGRAD, {"max_rows": 800}),
    ({"name": "ringleader"}, ADAGRAD, {"max_rows": 800}),
    ({"name": "backup_sync", "backup": 0}, SGD, {"admission": 2, "max_age": 20}),
    ({"name": "ssp", "bound": 2}, ADAM, {"max_rows": 800, "max_age": 30}),
    ({"name": "dcasgd"}, ADAGRAD, {"rule": "sgd", "rate": 0.1}),
    ({"name": "adag", "window": 3}, {}, {"rule": "adam"}),
    ({"name": "dynsgd", "window": 3}, {}, {}),
    ({"name": "easgd", "tau": 2}, {}, {"max_rows": 800}),
    ({"name": "diloco", "quorum": REPLICAS, "window": 3}, NESTEROV, {"rule": "adagrad"}),
)
#: Every algorithm with every wire format of pushes and with one of fetches, in turn with one server and with two.
MATRIX = (
    *(
        Setting(algorithm | ({"wire": wire} if wire != "fp32" else {}), rule, servers=1 + (i + j) % 2)
        for i, (algorithm, rule) in enumerate(THROUGH_SERVERS)
        for j, wire in enumerate(WIRES)
    ),
    *(
        Setting(algorithm | {"wire": "onebit", "wire_fetch": WIRES_OF_FETCHES[i % 4]}, rule, servers=1 + i % 2)
        for i, (algorithm, rule) in enumerate(THROUGH_SERVERS)
    ),
    *(Setting(algorithm, rule, servers=0) for algorithm, rule in WITHOUT_SERVERS),
    *(
        Setting(algorithm, rule, servers=1 + i % 2, tables=tables, full_every=1 + i % 3)
        for i, (algorithm, rule, tables) in enumerate(WITH_TABLES)
    ),
)


def differences(
    setting: Setting, directory: Path, environment: dict[str, str], chance: random.Random, strikes: int
) -> list[str]:
    """Run a job through and, beside it, with strikes; return what differs at the end.

    Parameters
    ----------
    setting : Setting
    directory : Path
        An empty one.
    environment : dict
        Of the jobs.
    chance : random.Random
        Decides when a job is killed or stopped, and which of them.
    strikes : int

    Returns
    -------
    list of str
        The names of the datasets of the last checkpoint whose bits differ, or what went wrong before.
    """
    ends = []
    for name, count in (("through", 0), ("struck", strikes)):
        place = directory / name
        place.mkdir()
        failed = _run(setting, place, environment, chance, count)
        if failed:
            return [f"{name}: {failed}"]
        ends.append(_vectors(_checkpoints(place)[-1]))
    through, struck = ends
    return sorted(name for name in through.keys() | struck.keys() if through.get(name) != struck.get(name))


def _run(setting: Setting, directory: Path, environment: dict[str, str], chance: random.Random, strikes: int) -> str:
    """See a run through its strikes; return what went wrong."""
    words = ["train", setting.write(directory), "-n", 1 + setting.servers + REPLICAS]
    for left in range(strikes, -1, -1):
        before = _checkpoints(directory)[-1:]
        with RunningJob([*words, *(["--resume=runs/digits"] if before else [])], directory, environment) as job:
            allowed = _strike(job, directory, before, chance) if left else {0}
            code = job.wait()
        if code not in allowed:
            return f"exit code {code}: {job.last_words()}"
        if code == 0:
            break
    return ""


def _strike(job: RunningJob, directory: Path, before: list[Path], chance: random.Random) -> set[int]:
    """Kill or stop a job after its first checkpoints; return the exit codes that may follow."""
    job.wait_for(lambda: len(_checkpoints(directory)) > 1 and _checkpoints(directory)[-1:] != before)
    time.sleep(chance.uniform(0, 0.7))
    if chance.random() < 0.6:
        job.kill(chance)
        return {-signal.SIGKILL, 0}
    with contextlib.suppress(ProcessLookupError):
        os.kill(job.launcher.pid, signal.SIGTERM)
    return {75, 0}


def _checkpoints(directory: Path) -> list[Path]:
    found = (directory / "runs" / "digits" / "checkpoints").glob("[0-9]*")
    return sorted(found, key=lambda path: int(path.name))


def _vectors(checkpoint: Path) -> dict[str, bytes]:
    """Return the bytes of all tensors that a checkpoint's index shows, and of its tables, by name."""
    vectors: dict[str, bytes] = {}

    def take(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biuf":
            values = item[...]
            assert np.isfinite(values).all(), f"{name} diverges: its bits say nothing"
            vectors[name] = values.tobytes()

    with h5py.File(checkpoint / "index.h5") as index:
        index.visititems(take)
    for table, saved in saved_tables(Checkpoint(checkpoint)).items():
        vectors |= {f"{table}/{array}": saved.read(array).tobytes() for array in BY_ROW}
        for number, part in enumerate(saved.parts):
            others = [array for array in (COUNTS, TOUCHES, *OPEN) if array in part]
            vectors |= {f"{table}/{number}/{array}": part.read(array).tobytes() for array in others}
    return vectors | {"step": checkpoint.name.encode()}
