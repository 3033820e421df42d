"""Synchronous training with PyTorch's DistributedDataParallel over gloo.

On processes of this host or, with ``--rendezvous``, on the processes of ``mpirun`` or ``srun``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

import common
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from mpidl.launch.environment import world


def epoch(model: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor, batches: Sequence[Tensor]) -> None:
    """Train on the samples of each batch."""
    for indices in batches:
        loss = functional.cross_entropy(model(images[indices]), labels[indices])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def process(rank: int, options: argparse.Namespace, meeting: str) -> None:
    """Be one of the processes: train, and on rank 0 evaluate and report."""
    torch.set_num_threads(1)
    workers = options.workers
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=workers)
    images, labels = common.load(options.data, "train")
    test = common.load(options.data, "t10k") if rank == 0 else None
    network = common.network()
    common.warm(network, images[: options.batch], labels[: options.batch])
    model = DistributedDataParallel(network, gradient_as_bucket_view=True, forward_sync_buffers=False)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=options.rate, fused=True)
    report = common.Report("PyTorch DDP", workers, options.target)
    for number in range(options.epochs):
        order = common.shard(len(images), rank, workers, number)
        dist.barrier()
        start = time.perf_counter()
        epoch(model, optimizer, images, labels, order.split(options.batch))
        dist.barrier()
        seconds = time.perf_counter() - start
        if test is not None:
            report.add(len(order) * workers, seconds, common.accuracy(network, *test))
    if rank == 0:
        report.print(options.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    options, started = common.arguments(__doc__), world()
    if started.size > 1:
        options.workers = started.size
        process(started.rank, options, f"file://{options.rendezvous}")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        multiprocessing.spawn(process, (options, f"tcp://{common.HOST}:{common.free_port()}"), nprocs=options.workers)
