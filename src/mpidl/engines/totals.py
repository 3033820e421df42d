"""The running totals of a training run over all its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, TypedDict, cast

import msgspec
import numpy as np
from msgspec import Struct, field

from mpidl.shards.shard import Shard
from mpidl.shards.side_state import FIGURES
from mpidl.shards.staleness import Histogram


class Shares(TypedDict, total=False):
    """Fractions of a worker's time of training by activity; their sum is 1. Empty if nothing was measured.

    Attributes
    ----------
    computing : float
        Gradients and the other parts of a step.
    pushing, fetching : float
        Copying, and waiting for the network to copy.
    waiting : float
        For servers and other workers, reductions included.
    rest : float
        Everything else; on a node with more ranks than cores also the time in which others had the core.
    """

    computing: float
    pushing: float
    fetching: float
    waiting: float
    rest: float


class Timing(TypedDict, total=False):
    """Durations by which a virtual cluster can simulate a run.

    Empty if nothing was measured, or if there are other ranks through which workers exchange with servers.

    Attributes
    ----------
    compute : float
        Mean seconds of a worker's step without fetches and pushes.
    compute_deviation : float
        Standard deviation of a gradient's duration, relative to `compute`.
    service : float
        Mean seconds of a server's work on a push.
    bandwidth : float or None
        Bytes per second of pushes, and of fetches other than those right behind a push, latency included; None if there
        were none.
    """

    compute: float
    compute_deviation: float
    service: float
    bandwidth: float | None


class Spent(Struct):
    """The time of a run's ranks, as they measure it, and the samples of each replica.

    Attributes
    ----------
    workers, replicas, intermediaries : int
        Number of workers and of replicas whose time was measured, and of other ranks that push and fetch.
    computing_seconds, overhead_seconds, fetching_seconds, pushing_seconds : float
        Total time of all replicas for gradients, for the other parts of a step (batches and their own arithmetic), for
        copying parameters, and for copying pushes into mailboxes.
    computing_squares : float
        Sum of the squares of the gradients' durations, in seconds squared.
    waiting_seconds : float
        Time that a replica waited for servers; mean over the replicas.
    evaluation_seconds : float
        Time that a replica spent on the test data during training; mean over the replicas.
    stopped : int
        Number of gradients that were given up while they were computed.
    saved_seconds : float
        Time that their rest would have taken: the mean duration of a replica's gradients less what each took.
    bytes_behind : int
        Bytes fetched right behind a push, while the rest of the push was under way, which `fetching_seconds` leaves
        out.
    busy_seconds : list of float
        Time that the server of each shard has worked.
    samples : list of int
        Number of samples of each replica; on a virtual cluster, of those in its own data.
    """

    workers: int = 0
    replicas: int = 0
    intermediaries: int = 0
    computing_seconds: float = 0.0
    overhead_seconds: float = 0.0
    computing_squares: float = 0.0
    fetching_seconds: float = 0.0
    pushing_seconds: float = 0.0
    waiting_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    stopped: int = 0
    saved_seconds: float = 0.0
    bytes_behind: int = 0
    busy_seconds: list[float] = []
    samples: list[int] = []

    def shares(self, seconds: float) -> Shares:
        """Return the fractions of a worker's `seconds` of training by activity."""
        if not self.computing_seconds or seconds <= 0:
            return {}
        parts = {
            "computing": (self.computing_seconds + self.overhead_seconds) / self.replicas,
            "pushing": self.pushing_seconds / self.workers,
            "fetching": self.fetching_seconds / self.workers,
            "waiting": self.waiting_seconds,
        }
        whole = max(seconds, sum(parts.values()))
        shares = {name: part / whole for name, part in parts.items()}
        return cast(Shares, shares | {"rest": max(0.0, 1 - sum(shares.values()))})


class Learning(Struct, frozen=True):
    """How large a run's steps are at present; None where there is no such figure.

    Attributes
    ----------
    server_rate, worker_rate : float or None
        Learning rate of the servers' rule, and of steps that replicas make by themselves.
    gradient_norm : float or None
        Euclidean norm of a recent gradient; median over the replicas.
    """

    server_rate: float | None = None
    worker_rate: float | None = None
    gradient_norm: float | None = None

    @classmethod
    def of(cls, server_rates: Any, worker_rates: Any, norms: Any) -> Learning:
        """Return the medians over shards or replicas; 0 stands for none."""
        found = ([value for value in map(float, values) if value] for values in (server_rates, worker_rates, norms))
        return cls(*(median(values) if values else None for values in found))


class ShardCounts(Struct):
    """What the shards have counted.

    Attributes
    ----------
    dropped : int
        Number of pushes that they have dropped.
    beside : dict of str to int
        The figures (`mpidl.shards.side_state.FIGURES`) of the shards' side state; empty if there is none.
    """

    dropped: int = 0
    side_figures: dict[str, int] = {}

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> ShardCounts:
        """Return the sums over shards in this process."""
        kept = [each.side_state.figures() for each in shards if each.side_state is not None]
        side_figures = {name: sum(each[name] for each in kept) for name in FIGURES if kept}
        return cls(sum(each.dropped for each in shards), side_figures)


class EpochLosses(Struct):
    """The training losses of the latest epochs, each by itself.

    Attributes
    ----------
    sums : dict of int to (float, float)
        `Totals.loss` and `Totals.weight` of an epoch alone, by the epoch, from 0.
    """

    sums: dict[int, tuple[float, float]] = {}

    def count(self, epoch: int, loss: float, weight: float) -> None:
        """Add to the sums of an epoch."""
        before = self.sums.get(epoch, (0.0, 0.0))
        self.sums[epoch] = before[0] + loss, before[1] + weight

    def mean(self, epoch: int) -> float | None:
        """Return the mean training loss of an epoch; None if nothing is known of it."""
        loss, weight = self.sums.get(epoch, (0.0, 0.0))
        return loss / weight if weight > 0 else None


class Totals(Struct):
    """Running totals of a run. Rates, such as samples per second, are derived from two of them.

    Attributes
    ----------
    now : float
        Time of the totals, in seconds of the run's clock (`mpidl.engines.monotonic`).
    samples, batches : int
        Number of samples and of batches that all replicas have trained on.
    again : int
        Number of these samples that don't count: their gradients were lost with a rank, and are computed again.
    loss, weight : float
        Sum of the batches' training losses, each times the batch's weight, and sum of these weights; if batches have
        no weights, sum of the samples' losses and number of samples.
    epochs : EpochLosses
        The same sums of the latest epochs.
    pushes, fetches, bytes_pushed, bytes_fetched : int
        Number of pushes and fetches of whole vectors by all replicas, and their bytes.
    bytes_moved : int
        Bytes that ranks of the same replica have sent each other.
    first_fetch, last_push : float
        Time at which training began and ended, in seconds of the same clock; 0 if it has not.
    staleness : Histogram
        Staleness of the pushes to all shards.
    logged : dict of str to (float, int)
        Figures that replicas log: the sum of all their values and their number.
    """

    now: float
    samples: int = 0
    batches: int = 0
    again: int = 0
    loss: float = 0.0
    weight: float = 0.0
    epochs: EpochLosses = field(default_factory=EpochLosses)
    pushes: int = 0
    fetches: int = 0
    bytes_pushed: int = 0
    bytes_fetched: int = 0
    bytes_moved: int = 0
    first_fetch: float = 0.0
    last_push: float = 0.0
    staleness: Histogram = field(default_factory=Histogram)
    shards: ShardCounts = field(default_factory=ShardCounts)
    spent: Spent = field(default_factory=Spent)
    learning: Learning = Learning()
    logged: dict[str, tuple[float, int]] = {}

    @property
    def seconds(self) -> float:
        """Training time so far: since the first fetch, without evaluations."""
        return max(0.0, self.now - self.first_fetch - self.spent.evaluation_seconds) if self.first_fetch else 0.0

    @property
    def trained_seconds(self) -> float:
        """Training time of a finished run: from the first fetch to the last push, without evaluations."""
        seconds = self.last_push - self.first_fetch - self.spent.evaluation_seconds
        return max(0.0, seconds) if self.first_fetch else 0.0


def timing(totals: Totals) -> Timing:
    """Return the durations by which a virtual cluster can simulate a run."""
    spent = totals.spent
    if not totals.batches or not spent.computing_seconds or spent.intermediaries:
        return {}
    gradient = spent.computing_seconds / totals.batches
    variance = max(0.0, spent.computing_squares / totals.batches - gradient * gradient)
    mean = gradient + spent.overhead_seconds / totals.batches
    moving = spent.fetching_seconds + spent.pushing_seconds
    servers = max(1, len(spent.busy_seconds))
    return {
        "compute": mean,
        "compute_deviation": variance**0.5 / mean,
        "service": sum(spent.busy_seconds) / servers / totals.pushes if totals.pushes else 0.0,
        "bandwidth": (totals.bytes_pushed + totals.bytes_fetched - spent.bytes_behind) / moving if moving else None,
    }


def to_state(totals: Totals) -> dict[str, Any]:
    """Return totals as numbers, lists and mappings, for `from_state`."""

    def builtin(value: Any) -> Any:
        return value.state() if isinstance(value, Histogram) else value.tolist()

    found: dict[str, Any] = msgspec.to_builtins(totals, enc_hook=builtin)
    return found


def from_state(state: Mapping[str, Any]) -> Totals:
    """Return the inverse of `to_state`."""
    return msgspec.convert(state, Totals, dec_hook=lambda kind, found: Histogram.of(found))


#: Sums over the workers, and sums over the first ranks of the replicas.
SUMS = ("bytes_pushed", "bytes_fetched", "bytes_moved")
OF_LEADS = ("samples", "batches", "loss", "weight", "pushes", "fetches")
#: The same of `Spent`.
SPENT_SUMS = ("bytes_behind", "fetching_seconds", "pushing_seconds")
SPENT_OF_LEADS = ("computing_seconds", "overhead_seconds", "computing_squares", "stopped", "saved_seconds")


def from_status(now: float, workers: Any, servers: Any, partitions: int = 1, intermediaries: Any = None) -> Totals:
    """Add up the status of all ranks.

    Parameters
    ----------
    now : float
        Time of the totals, in seconds of the run's clock (`mpidl.engines.monotonic`).
    workers, servers : structured arrays
        One row for each worker and each shard, of `transport.protocol.WORKER_STATUS` and `SERVER_STATUS`.
    partitions : int
        Number of workers of a replica, whose rows are consecutive.
    intermediaries : structured array, optional
        One row of `WORKER_STATUS` for each other rank that pushes and fetches: the bytes of workers that count none.
    """
    names = () if intermediaries is None else ("bytes_pushed", "bytes_fetched")
    moved = {name: intermediaries[name].sum().item() for name in names}
    leads = workers[::partitions]
    begun = workers["first_fetch"][workers["first_fetch"] > 0]
    spent = Spent(
        workers=len(workers),
        replicas=len(leads),
        intermediaries=0 if intermediaries is None else len(intermediaries),
        **{name: workers[name].sum().item() for name in SPENT_SUMS},
        **{name: leads[name].sum().item() for name in SPENT_OF_LEADS},
        waiting_seconds=float(workers["waiting_seconds"].mean()),
        evaluation_seconds=float(workers["evaluation_seconds"].mean()),
        busy_seconds=servers["busy_seconds"].tolist(),
        samples=leads["samples"].tolist(),
    )
    side_figures = {name: int(servers[name].sum()) for name in FIGURES}
    norms = np.sqrt(workers["gradient_square"].reshape(-1, partitions).sum(axis=1))
    staleness = Histogram(
        servers["staleness"].sum(axis=0), int(servers["staleness_sum"].sum()), int(servers["staleness_max"].max())
    )
    return Totals(
        now=now,
        **{name: workers[name].sum().item() + moved.get(name, 0) for name in SUMS},
        **{name: leads[name].sum().item() for name in OF_LEADS},
        epochs=_by_epoch(leads),
        first_fetch=float(begun.min()) if begun.size else 0.0,
        last_push=float(workers["last_push"].max()),
        staleness=staleness,
        shards=ShardCounts(int(servers["dropped"].sum()), side_figures if any(side_figures.values()) else {}),
        spent=spent,
        learning=Learning.of(servers["rate"], leads["rate"], norms),
        logged=all_logged((name.decode(), total, count) for name, total, count in leads["logged"].ravel().tolist())
        if leads["logged"]["count"].any()
        else {},
    )


def all_logged(figures: Iterable[tuple[str, float, int]]) -> dict[str, tuple[float, int]]:
    """Add up what replicas have logged: names, sums of values and their numbers; a number of 0 stands for none."""
    found: dict[str, tuple[float, int]] = {}
    for name, total, count in figures:
        if count:
            before = found.get(name, (0.0, 0))
            found[name] = before[0] + total, before[1] + count
    return found


def _by_epoch(leads: Any) -> EpochLosses:
    epochs, place = np.unique(leads["epoch"].ravel(), return_inverse=True)
    sums = (np.bincount(place, leads[name].ravel()).tolist() for name in ("epoch_loss", "epoch_weight"))
    return EpochLosses(dict(zip(epochs.tolist(), zip(*sums, strict=True), strict=True)))
