"""The measurements of ``mpidl doctor --save`` of a machine and its network: a TOML file, and the costs from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from mpidl import schema
from mpidl.config import toml
from mpidl.errors import UsageError
from mpidl.partition.costs import Costs
from mpidl.paths import write_whole
from mpidl.schema import Checked, Count, NonNegative, Positive

HEADER = "# Measured by `mpidl doctor --save`: bytes, operations of floating point, seconds.\n"


@dataclass(frozen=True, kw_only=True)
class Measurement(Checked):
    """The hosts, the MPI library and the date of a measurement."""

    hosts: tuple[str, ...]
    mpi: str
    date: str


@dataclass(frozen=True, kw_only=True)
class MeasuredNode(Measurement):
    """``[node]``: a node and one of its cores.

    Attributes
    ----------
    memory : int
        Bytes of the node.
    memcpy : float
        Bytes per second of a copy in memory.
    update : float
        Bytes of gradient per second that a server applies by Adagrad.
    flops : float
        Operations per second of a gradient of dense layers.
    flops_of : dict of str to float
        The same for other types of layers.
    parameter_bandwidth, elements, elements_of
        As in `Costs`.
    """

    cores: Count
    memory: Count
    memcpy: Positive
    update: Positive
    flops: Positive
    flops_of: dict[str, Positive] = field(default_factory=dict)
    parameter_bandwidth: Positive = Costs.parameter_bandwidth
    elements: Positive = Costs.elements
    elements_of: dict[str, Positive] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Link(Measurement):
    """``[within]`` and ``[between]``: the link between two ranks of a node, or of two nodes.

    Attributes
    ----------
    push_bandwidth, fetch_bandwidth, send_bandwidth : float
        Bytes per second of long puts into a window, gets from one, and sends.
    push_latency, fetch_latency, send_latency : float
        Seconds of the same with 8 bytes.
    """

    push_bandwidth: Positive
    fetch_bandwidth: Positive
    send_bandwidth: Positive
    push_latency: NonNegative
    fetch_latency: NonNegative
    send_latency: NonNegative


@dataclass(frozen=True)
class Measured:
    """All measurements; None for those that weren't made."""

    node: MeasuredNode | None = None
    within: Link | None = None
    between: Link | None = None

    @property
    def costs(self) -> Costs:
        """Costs on these nodes, with the defaults of `Costs` for missing measurements."""
        node, within, between, costs = self.node, self.within, self.between, Costs()
        if node is not None:
            same = ("flops", "flops_of", "parameter_bandwidth", "elements", "elements_of")
            costs = replace(costs, memory=node.memory // node.cores, **{key: getattr(node, key) for key in same})
        if within is not None:
            costs = replace(costs, bandwidth=within.send_bandwidth, latency=within.send_latency)
        if between is not None:
            costs = replace(costs, between_bandwidth=between.send_bandwidth, between_latency=between.send_latency)
        return costs

    def __str__(self) -> str:
        parts = {"node": self.node, "links within": self.within, "links between nodes": self.between}
        return ", ".join(
            f"{name} on {' and '.join(part.hosts)} on {part.date[:10]}" for name, part in parts.items() if part
        )


KINDS = {"node": MeasuredNode, "within": Link, "between": Link}


def read(path: Path) -> Measured:
    """Read a file; raise UsageError if it can't be read, or is not a file of `save`."""
    sections = toml.read(path)
    try:
        for name in sections:
            schema.choose(KINDS, "section", name)
        return Measured(**{name: schema.build(KINDS[name], name, values) for name, values in sections.items()})
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def save(path: Path, measured: Measured) -> None:
    """Write measurements into a file, which keeps those of other links.

    Raise UsageError if it can't be written, or is another file.
    """
    kept = read(path) if path.exists() else Measured()
    present = {name: getattr(measured, name) or getattr(kept, name) for name in KINDS}
    sections = {name: asdict(part) for name, part in present.items() if part is not None}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (HEADER + toml.dump(sections)).encode())
    except OSError as error:
        raise UsageError(f"{path}: can't be written ({error.strerror})") from None
