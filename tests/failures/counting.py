"""Jobs whose parameters count: parameter i is how often sample i was applied, in every checkpoint and at the end.

A batch's gradient is minus the number of times that it has each sample, so that plain SGD with a rate of 1 adds 1 to a
sample's parameter each time that it is applied. What comes after the samples' own parameters pads the model, so that
it has several shards and chunks and is as large as one likes; there each element counts all samples.
"""

from __future__ import annotations

import os
import random
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpidl.config import toml
from mpidl.data.schedule import Portions
from mpidl.launch.environment import world
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters import Layout, Range
from mpidl.relays.residuals import saved_residuals
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.table_files import saved_tables
from mpidl.tables.lookups import TableSpec, Wanted

BATCH, PORTION = 4, 12
NAME = "counting"
#: The file with the gradients that ranks have begun, and one of them.
GRADIENTS = "gradients"
BEGUN = np.dtype([("rank", np.int64), ("time", np.float64)])


class Counting:
    """The model.

    Parameters
    ----------
    samples, padding : int
        Number of samples, and of the parameters after theirs.
    moves : bool
        Whether the padding counts all samples; it stays 0 if not.
    seconds : float
        What a gradient takes, on average.
    gradients : Path
        A file to which each rank appends itself and the time, in seconds since the epoch, when it begins a gradient.
    """

    def __init__(self, samples: int, padding: int, moves: bool, seconds: float, gradients: Path) -> None:
        self.parameters = np.zeros(samples + padding)
        self.layout = Layout([("samples", (samples,)), ("padding", (padding,))])
        self._gradient = np.zeros_like(self.parameters)
        self._samples, self._moves, self._seconds, self._gradients = samples, moves, seconds, gradients
        self._rank = world().rank

    def loss_and_gradient(self, batch):
        with self._gradients.open("ab", buffering=0) as file:
            file.write(np.array((self._rank, time.time()), BEGUN).tobytes())
        time.sleep(random.uniform(0, 2 * self._seconds))
        numbers = batch.inputs[:, 0].astype(int)
        self._gradient[: self._samples] = -np.bincount(numbers, minlength=self._samples)
        if self._moves:
            self._gradient[self._samples :] = -len(numbers)
        return 0.0, self._gradient

    def evaluate(self, batch):
        return 0.0, float("nan")


class CountingRows(Counting, CompleteModel):
    """The same with a table in which row i, of two equal elements, counts sample i, too."""

    dtype = np.dtype(np.float64)
    tables = (TableSpec("rows", 2, scale=0.0),)

    def wanted(self, batch):
        return [Wanted(0, batch.inputs[:, 0].astype(int))]

    def loss_and_gradient(self, batch):
        ((table, ids),) = self.wanted(batch)
        self.rows.look_up(table, ids).add(np.full((ids.size, 2), -1.0))
        return super().loss_and_gradient(batch)

    def evaluate(self, batch):
        return Evaluation(0.0, float("nan"))


def make(dataset, seed):
    """Return the model that the environment describes; see `Case.environment`."""
    return (CountingRows if int(os.environ["COUNTING_ROWS"]) else Counting)(
        dataset.train.samples,
        int(os.environ["COUNTING_PADDING"]),
        bool(int(os.environ["COUNTING_MOVES"])),
        float(os.environ["COUNTING_SECONDS"]),
        Path(os.environ["COUNTING_GRADIENTS"]),
    )


@dataclass(frozen=True)
class Case:
    """A job that counts.

    Attributes
    ----------
    name : str
    algorithm : dict
        Its section; the algorithm applies every gradient once, as it is.
    servers, replicas : tuple of int
        Numbers to choose from at each start; without both the run is in one process.
    moves : bool
        See `Counting`; False where replicas that share memory would write one element at the same time.
    deterministic : bool
    relays : int
        Number of nodes with a relay, of nodes of four ranks each; 0 for one node without.
    groups : bool
        Whether shards update the samples' own parameters and the others one after the other.
    tables : dict, optional
        The section of a table that counts, too; None without a table.
    full_every : int
        Of its checkpoints in a row, one has all rows; few are kept unless it is 1.
    samples, epochs, padding : int
    pace : float
        Seconds of a batch, over all replicas.
    """

    name: str
    algorithm: dict[str, Any] = field(default_factory=dict)
    servers: tuple[int, ...] = (1, 2)
    replicas: tuple[int, ...] = (1, 2, 3)
    moves: bool = True
    deterministic: bool = False
    relays: int = 0
    groups: bool = False
    tables: dict[str, Any] | None = None
    full_every: int = 1
    samples: int = 101
    epochs: int = 10
    padding: int = 300
    pace: float = 0.02

    @property
    def steps(self) -> int:
        """Number of batches of a whole run."""
        return self.epochs * -(-self.samples // BATCH)

    def write(self, directory: Path) -> Path:
        """Write data and configuration; return the configuration's path."""
        numbers = np.arange(self.samples, dtype=np.float32)[:, None]
        with h5py.File(directory / "numbers.h5", "w") as file:
            for split in ("train", "test"):
                file[f"{split}/x"], file[f"{split}/y"] = numbers, np.zeros((self.samples, 1), np.float32)
        path = directory / f"{NAME}.toml"
        path.write_text(
            toml.dump(
                {
                    "run": {"name": NAME, "epochs": self.epochs, "deterministic": self.deterministic},
                    "data": {"source": "hdf5", "path": "numbers.h5", "batch": BATCH, "portion": PORTION},
                    "model": {"factory": "counting:make", **({"group": [{"match": "padding"}]} if self.groups else {})},
                    "algorithm": self.algorithm or {"name": "downpour"},
                    "server": {"rule": "sgd", "rate": 1.0} if self.has_rule else {},
                    "topology": {"relay": self.relays > 0},
                    "tables": self.tables or {},
                    "checkpoint": {
                        "keep": 3 if self.padding > 10**5 or self.full_every > 1 else 100,
                        "full_every": self.full_every,
                    },
                }
            )
        )
        return path

    @property
    def has_rule(self) -> bool:
        """Whether the algorithm's shards apply a rule."""
        return self.algorithm.get("name") not in ("agn", "dynsgd", "averaging")

    def environment(self, directory: Path, replicas: int) -> dict[str, str]:
        """Return what the model reads, and how many ranks a node has: pushes and fetches are encoded between nodes."""
        encoded = bool(self.algorithm.keys() & {"wire", "wire_fetch"})
        return {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            "COUNTING_PADDING": str(self.padding),
            "COUNTING_MOVES": str(int(self.moves)),
            "COUNTING_ROWS": str(int(self.tables is not None)),
            "COUNTING_SECONDS": str(self.pace * max(1, replicas)),
            "COUNTING_GRADIENTS": str(directory / GRADIENTS),
            **({"MPIDL_RANKS_PER_NODE": "4" if self.relays else "1"} if self.relays or encoded else {}),
        }


LARGE: dict[str, Any] = {
    "samples": 60,
    "epochs": 4,
    "padding": int(os.environ.get("COUNTING_LARGE", 4_000_000)),
    "pace": 0.1,
}
ALONE: dict[str, Any] = {"replicas": (1,)}
APART: dict[str, Any] = {"servers": (0,)}
#: What sparse formats encode together are 1024 elements: enough for two servers.
BLOCKS: dict[str, Any] = {"padding": 2900}
#: Two nodes, of which one has a relay.
RELAYED: dict[str, Any] = {"servers": (1, 2), "replicas": (4, 5), "relays": 1}
#: The same with as many replicas at each start: those without a relay, too, go on with what they have left out.
ENCODED: dict[str, Any] = {**RELAYED, "replicas": (4,)}
#: One process.
NONE: dict[str, Any] = {"servers": (0,), "replicas": (0,)}
#: The rule of a table where the algorithm takes none.
COUNTED: dict[str, Any] = {"rule": "sgd", "rate": 1.0}
#: What applies each gradient once, as it is. Where a mean is taken, or changes are weighed, there is one replica.
CASES = (
    Case("downpour"),
    Case("downpour, n_push 3", {"name": "downpour", "n_push": 3}),
    Case("downpour, n_fetch 2", {"name": "downpour", "n_fetch": 2}),
    Case("downpour, literal 3, 2", {"name": "downpour", "n_push": 3, "n_fetch": 2, "schedule": "literal"}),
    Case("downpour, overlap", {"name": "downpour", "overlap": True}),
    Case("downpour, bf16", {"name": "downpour", "n_push": 2, "wire": "bf16"}),
    Case("downpour, topk", {"name": "downpour", "n_push": 2, "wire": "topk:0.5"}, moves=False, **BLOCKS),
    Case("downpour, fetches in bf16", {"name": "downpour", "wire_fetch": "bf16"}),
    Case("downpour, deterministic", {"name": "downpour", "n_push": 2}, deterministic=True),
    Case("downpour, one process", **NONE),
    Case("downpour, relay", **RELAYED),
    Case("downpour, n_push 3, n_fetch 2, relay", {"name": "downpour", "n_push": 3, "n_fetch": 2}, **RELAYED),
    Case("downpour, topk, relay", {"name": "downpour", "wire": "topk:0.1", "wire_fetch": "bf16"}, **ENCODED, **BLOCKS),
    Case("ssp", {"name": "ssp", "bound": 1}),
    Case("ssp, relay", {"name": "ssp", "bound": 1}, **RELAYED),
    Case("softsync", {"name": "softsync", "n": 100, "modulate": False}),
    Case("dcasgd", {"name": "dcasgd", "variance": 0.0}),
    Case("dynsgd, window 3", {"name": "dynsgd", "rate": 1.0, "window": 3}, **ALONE),
    Case("rescaled, n_push 2", {"name": "rescaled", "n_push": 2}, **ALONE),
    Case("ringleader", {"name": "ringleader"}, **ALONE),
    Case("hogwild", {"name": "hogwild"}, moves=False, **APART),
    Case("sync", {"name": "sync"}, **APART, **ALONE),
    Case("averaging, tau 3", {"name": "averaging", "rate": 1.0, "tau": 3, "inner": "sgd"}, **APART, **ALONE),
    Case("downpour, tables", tables={}),
    Case("downpour, n_push 3, tables", {"name": "downpour", "n_push": 3}, tables={"prefetch": 2}),
    Case("downpour, n_fetch 2, one process, tables", {"name": "downpour", "n_fetch": 2}, tables={}, **NONE),
    Case("downpour, tables, deltas", tables={}, full_every=4),
    Case("downpour, bf16, tables", {"name": "downpour", "wire": "bf16", "wire_fetch": "bf16"}, tables={}),
    Case("ssp, tables", {"name": "ssp", "bound": 1}, servers=(1, 2, 3), tables={"prefetch": 3}),
    Case("softsync, tables", {"name": "softsync", "n": 100, "modulate": False}, tables={"prefetch": 0}),
    Case("dynsgd, window 3, tables", {"name": "dynsgd", "rate": 1.0, "window": 3}, tables=COUNTED, **ALONE),
    Case("downpour, large", **LARGE),
    Case("downpour, n_push 3, large", {"name": "downpour", "n_push": 3}, **LARGE),
    Case("downpour, relay, large", **RELAYED, **LARGE),
    Case("hogwild, large", {"name": "hogwild"}, moves=False, **APART, **LARGE),
)


def used(index: h5py.File, samples: int) -> np.ndarray:
    """Return how often a checkpoint says that it has each sample, shape (samples,)."""
    attributes = index.attrs
    config = tomllib.loads(attributes["config"])
    portions = Portions(samples, BATCH, PORTION, config["run"]["seed"], contiguous=True)
    counts = np.zeros(samples, np.int64)
    for number in range(int(attributes["next_portion"])):
        counts[portions.indices(number)] += 1
    for number, done in attributes["unfinished"]:
        counts[portions.indices(int(number))[int(done) * BATCH :]] -= 1
    return counts


@dataclass
class Found:
    """What a checkpoint has.

    Attributes
    ----------
    step : int
    lost, doubled : int
        Applications of samples that its parameters lack, or have beyond what it says.
    fault : str
        What is wrong with it; empty if nothing is.
    """

    step: int
    lost: int = 0
    doubled: int = 0
    fault: str = ""


def examine(path: Path, case: Case, whole: bool = False) -> Found:
    """Read a checkpoint, verify it, and compare its parameters with the samples that it says it has.

    Parameters
    ----------
    path : Path
    case : Case
    whole : bool
        Whether the run is over, so that it has every sample `case.epochs` times.
    """
    found = Found(int(path.name))
    try:
        values, rows = read_verified(path), read_rows(path, case.samples) if case.tables is not None else None
        with h5py.File(path / "index.h5") as index:
            expected = np.full(case.samples, case.epochs) if whole else used(index, case.samples)
            said = int(index.attrs["samples"])
    except Exception as error:  # Whatever a half-written file makes the libraries raise.
        found.fault = f"unreadable: {error}"
        return found
    counts, padding = values[: case.samples], values[case.samples :]
    excess = counts - expected
    if rows is not None:
        # What is wrong of either is a fault.
        excess = np.where(excess, excess, rows - expected)
    found.lost, found.doubled = int(-excess[excess < 0].sum()), int(excess[excess > 0].sum())
    total = int(counts.sum())
    if np.any(excess):
        found.fault = f"{found.lost} lost, {found.doubled} doubled"
    elif said != total:
        found.fault = f"says {said} samples, has {total}"
    elif np.any(padding != (total if case.moves else 0)):
        found.fault = f"its padding has {int(padding.min())} to {int(padding.max())} samples, not {total}"
    return found


def read_rows(path: Path, samples: int) -> np.ndarray:
    """Return how often a checkpoint's table has each sample, shape (samples,)."""
    saved, counts = saved_tables(Checkpoint(path))["rows"], np.zeros(samples)
    ids, rows = saved.read("ids"), saved.read("rows")
    assert np.array_equal(np.unique(ids), np.sort(ids)), "a row is there twice"
    assert np.array_equal(rows[:, 0], rows[:, 1]), "a row has been updated in part"
    counts[ids] = rows[:, 0]
    return counts


def read_verified(path: Path) -> np.ndarray:
    """Return all parameters of a checkpoint, after its checksums have been checked."""
    checkpoint = Checkpoint(path)
    everything = Range(0, checkpoint.size)
    for state in checkpoint.states:
        checkpoint.read(f"rule/{state}", everything)
    values = checkpoint.read("parameters", everything)
    with h5py.File(path / "index.h5") as index:
        shown = np.concatenate([index[f"parameters/{name}"][...] for name in ("samples", "padding")])
        assert np.array_equal(values, shown), "the index shows other parameters"
    # What encodings have left out is a gradient, too, that a rate of 1 is still to subtract.
    replicas = map(checkpoint.replica_vectors, range(len(checkpoint.position.replicas)))
    return values - sum(saved_residuals(checkpoint)) - sum(each.get("residual", 0.0) for each in replicas)
