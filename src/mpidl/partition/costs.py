"""What computing and moving takes on the ranks of a cluster, in seconds: the basis of every prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, prod

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
        The same from node to node. The ranks of a node share its bandwidth.
    memory : int, optional
        Bytes that a rank may use; as many as it likes by default.
    flops_of : mapping of str to float
        For some types of layers, their own operations per second.
    parameter_bandwidth : float
        Bytes of parameters per second that a gradient takes besides its operations, however few the samples are: it
        reads them twice, and writes as much.
    elements : float
        Elements per second that a layer without products takes and gives, forward and backward.
    elements_of : mapping of str to float
        For some types of layers, their own elements per second.
    """

    flops: float = 5e10
    bandwidth: float = 5e9
    latency: float = 2e-6
    between_bandwidth: float = 1.2e9
    between_latency: float = 5e-5
    memory: int | None = None
    flops_of: Mapping[str, float] = field(default_factory=dict)
    parameter_bandwidth: float = inf
    elements: float = 1e9
    elements_of: Mapping[str, float] = field(default_factory=dict)

    def slower(self, factor: float) -> Costs:
        """Return the costs of ranks that compute so many times as long, with the same links."""
        return replace(
            self,
            flops=self.flops / factor,
            flops_of={type: speed / factor for type, speed in self.flops_of.items()},
            parameter_bandwidth=self.parameter_bandwidth / factor,
            elements=self.elements / factor,
            elements_of={type: speed / factor for type, speed in self.elements_of.items()},
        )

    def layer(self, type: str, operations: float, nbytes: float, elements: float) -> float:
        """Return the seconds of a gradient of a layer.

        Parameters
        ----------
        type : str
            Type of the layer.
        operations : float
            Floating-point operations of its products, forward and backward.
        nbytes : float
            Bytes of its parameters.
        elements : float
            Elements that it takes and gives: what counts where there are no products.
        """
        if operations:
            return operations / self.flops_of.get(type, self.flops) + nbytes / self.parameter_bandwidth
        return elements / self.elements_of.get(type, self.elements)

    def move(self, nbytes: float, messages: int = 1, between: bool = False) -> float:
        """Return the seconds in which a rank sends so many bytes, in so many messages, within a node or between two."""
        if between:
            return messages * self.between_latency + nbytes / self.between_bandwidth
        return messages * self.latency + nbytes / self.bandwidth

    def gradient(self, layers: Iterable[LayerSummary], samples: int, itemsize: int = 4) -> float:
        """Return the seconds of a gradient of so many samples.

        A layer takes its operations of the forward pass three times: forward, for the weights' gradient and for that
        of its inputs. The first layer's inputs need none.
        """
        found, taken = 0.0, 0
        for number, layer in enumerate(layers):
            given = prod(layer.shape) * samples
            operations = (3 if number else 2) * layer.operations * samples
            found += self.layer(layer.type, operations, layer.parameters * itemsize, taken + given)
            taken = given
        return found
