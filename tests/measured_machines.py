"""Figures of a machine as `mpidl doctor --save` measures them, and jobs to plan on it."""

from mpidl.config import from_dict
from mpidl.config.measured import Link, MeasuredNode

ORIGIN = {"hosts": ("alpha",), "mpi": "Open MPI v5.0.8", "date": "2026-03-01T10:00:00+00:00"}
NODE = MeasuredNode(**ORIGIN, cores=8, memory=10**9, memcpy=9e9, update=2e9, flops=3e10)
LINK = Link(
    **ORIGIN, push_bandwidth=4e9, fetch_bandwidth=4e9, send_bandwidth=4e9, push_latency=1e-6, fetch_latency=1e-6,
    send_latency=1e-6,
)  # fmt: skip

FACTORY = """
import numpy as np
class Model:
    parameters = np.zeros(1000)
    def loss_and_gradient(self, batch):
        return 0.0, self.parameters
def make(dataset, seed):
    return Model()
"""

#: Bytes of the parameters of a job of `config`.
BYTES = 4 * (300 * 500 + 500 + 500 * 10 + 10)
#: Links that one server's fill with few replicas.
SLOW = {"compute": 0.02, "bandwidth": 1e8}


def config(**sections):
    values = {
        "data": {"source": "synthetic", "shape": [300], "batch": 8},
        "model": {"layer": [{"type": "dense", "units": 500}, {"type": "dense", "units": 10}]},
    }
    return from_dict(values | sections)
