"""What computing and moving takes on the ranks of a cluster, in seconds: the basis of every prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mpidl.nn.model import LayerSummary


@dataclass(frozen=True)
class Costs:
    """Speeds of a rank and of its links. The defaults are those of a core of a CPU and of Ethernet at 10 Gbit/s.

    Attributes
    ----------
    flops : float
        Floating-point operations per second of a gradient.
    bandwidth, latency : float
        Bytes per second from a rank to another of its node, and seconds of a message without data.
    between_bandwidth, between_latency : float
        The same from node to node.
    memory : int, optional
        Bytes that a rank may use; as many as it likes by default.
    flops_of : mapping of str to float
        For some types of layers, their own operations per second.
    """

    flops: float = 5e10
    bandwidth: float = 5e9
    latency: float = 2e-6
    between_bandwidth: float = 1.2e9
    between_latency: float = 5e-5
    memory: int | None = None
    flops_of: Mapping[str, float] = field(default_factory=dict)

    def compute(self, operations: float, layer: str = "") -> float:
        """Return the seconds of so many operations of a gradient, in a layer of type `layer`."""
        return operations / self.flops_of.get(layer, self.flops)

    def move(self, nbytes: float, messages: int = 1, between: bool = False) -> float:
        """Return the seconds in which a rank sends so many bytes, in so many messages, within a node or between two."""
        if between:
            return messages * self.between_latency + nbytes / self.between_bandwidth
        return messages * self.latency + nbytes / self.bandwidth

    def gradient(self, layers: Iterable[LayerSummary], samples: int) -> float:
        """Return the seconds of a gradient of so many samples.

        A layer takes its operations of the forward pass three times: forward, for the weights' gradient and for that
        of its inputs. The first layer's inputs need none.
        """
        return sum(
            self.compute((3 if number else 2) * layer.operations * samples, layer.type)
            for number, layer in enumerate(layers)
        )
