"""Asynchronous training with a parameter server over PyTorch's RPC (TensorPipe), on the processes of this host.

The pattern of PyTorch's parameter-server tutorials: a worker computes a gradient on its copy of the parameters and
sends it in one call; the server applies gradients under a lock, in the order of their arrival, and answers with the
new parameters.
"""

from __future__ import annotations

import argparse
import threading
import time

import common
import torch
from torch import Tensor, multiprocessing
from torch.distributed import rpc
from torch.nn import functional


class Server:
    """Holds the parameters and applies the gradients that workers send."""

    def __init__(self, parameters: list[Tensor], rate: float):
        self.parameters = parameters
        self.optimizer = torch.optim.Adagrad(parameters, lr=rate, fused=True)
        self.lock = threading.Lock()

    def update(self, gradients: list[Tensor]) -> list[Tensor]:
        """Apply a worker's gradient and return the parameters.

        They are sent without a copy: another worker's update may run meanwhile, as on any asynchronous server.
        """
        with self.lock:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
        return self.parameters


class Worker:
    """Computes gradients on its shard of each epoch."""

    def __init__(self, server: rpc.RRef, number: int, options: argparse.Namespace):
        self.server = server
        self.number = number
        self.options = options
        self.images, self.labels = common.load(options.data, "train")
        self.model = common.network()
        self.parameters = list(self.model.parameters())
        common.warm(self.model, self.images[: options.batch], self.labels[: options.batch])

    def ready(self) -> None:
        """Return once the worker has been made."""

    def epoch(self, number: int) -> int:
        """Train on this worker's shard of the epoch and return its number of samples."""
        order = common.shard(len(self.images), self.number, self.options.workers, number)
        for indices in order.split(self.options.batch):
            loss = functional.cross_entropy(self.model(self.images[indices]), self.labels[indices])
            gradients = torch.autograd.grad(loss, self.parameters)
            fresh = self.server.rpc_sync().update(gradients)
            for parameter, value in zip(self.parameters, fresh, strict=True):
                parameter.data = value
        return len(order)


def process(rank: int, options: argparse.Namespace, port: int) -> None:
    """Be the server (rank 0), which starts each epoch on the workers and evaluates after it, or a worker."""
    torch.set_num_threads(1)
    backend = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{common.HOST}:{port}", rpc_timeout=3600)
    name = f"worker{rank}" if rank else "server"
    rpc.init_rpc(name, rank=rank, world_size=options.workers + 1, rpc_backend_options=backend)
    if rank == 0:
        serve(options)
    rpc.shutdown()


def serve(options: argparse.Namespace) -> None:
    """Train, evaluate and report."""
    test = common.load(options.data, "t10k")
    model = common.network()
    server = rpc.RRef(Server([parameter.data for parameter in model.parameters()], options.rate))
    numbers = range(options.workers)
    workers = [rpc.remote(f"worker{k + 1}", Worker, args=(server, k, options)) for k in numbers]
    for worker in workers:
        worker.rpc_sync().ready()
    report = common.Report("PyTorch RPC", options.workers, options.target)
    for number in range(options.epochs):
        start = time.perf_counter()
        epochs = [worker.rpc_async().epoch(number) for worker in workers]
        samples = sum(epoch.wait() for epoch in epochs)
        seconds = time.perf_counter() - start
        report.add(samples, seconds, common.accuracy(model, *test))
    report.print(options.json)


if __name__ == "__main__":
    options = common.arguments(__doc__)
    multiprocessing.spawn(process, (options, common.free_port()), nprocs=options.workers + 1)
