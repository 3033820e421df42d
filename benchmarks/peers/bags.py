"""Training of bags of ids with PyTorch: sparse gradients, and SparseAdam.

A plain loop in one process; with more, DistributedDataParallel over gloo. ``network`` and ``data`` are factories of
mpidl, which trains the same on the same batches.
"""

from __future__ import annotations

import argparse
import os

os.environ["OMP_NUM_THREADS"] = "1"
import json
import time

import common
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import mpidl

#: From the benchmark: rows of the table, ids of a sample, and samples.
ROWS, IDS, SAMPLES = (int(os.environ.get(f"BAGS_{name}", "1000")) for name in ("ROWS", "IDS", "SAMPLES"))
DIMENSION, CLASSES, RATE = 16, 2, 1e-3


class Network(nn.Module):
    """The sum of the rows of a bag, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(ROWS, DIMENSION, mode="sum", sparse=True)
        self.top = nn.Sequential(nn.Linear(DIMENSION, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.top(self.bags(ids))
        return found

    def lookups(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Say which ids are looked up."""
        return {"bags": ids}


def network(dataset: object = None, seed: int = common.SEED) -> Network:
    """Return the network, the same on every process."""
    torch.manual_seed(seed)
    return Network()


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Return ids by Zipf's law, (samples, ids), and labels."""
    random = np.random.default_rng(common.SEED)
    ranks = random.zipf(1.05, (SAMPLES, IDS)).astype(np.uint64)
    return (ranks * np.uint64(2654435761) % np.uint64(ROWS)).astype(np.int64), random.integers(0, CLASSES, SAMPLES)


def data() -> mpidl.Arrays:
    """Return the samples, and few for tests."""
    ids, labels = samples()
    return mpidl.Arrays((ids, labels), (ids[:64], labels[:64]))


def process(rank: int, options: argparse.Namespace, meeting: str) -> None:
    """Be one of the processes: train, and on rank 0 report."""
    torch.set_num_threads(1)
    model: nn.Module = network()
    top, bags = list(model.top.parameters()), list(model.bags.parameters())
    if options.workers > 1:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=options.workers)
        model = DistributedDataParallel(model)
    optimizers = [torch.optim.Adam(top, RATE, fused=True), torch.optim.SparseAdam(bags, RATE)]
    ids, labels = (torch.from_numpy(each) for each in samples())
    seconds = count = 0.0
    for number in range(1 + options.epochs):
        order = common.shard(SAMPLES, rank, options.workers, number)
        if options.workers > 1:
            dist.barrier()
        start = time.perf_counter()
        # In the first epoch, libraries initialise.
        for indices in order[: options.batch].split(options.batch) if not number else order.split(options.batch):
            for each in optimizers:
                each.zero_grad()
            functional.cross_entropy(model(ids[indices]), labels[indices]).backward()
            for each in optimizers:
                each.step()
        if options.workers > 1:
            dist.barrier()
        if number:
            seconds, count = seconds + time.perf_counter() - start, count + len(order) * options.workers
    if rank == 0:
        print(json.dumps({"samples_per_second": count / seconds}), flush=True)
    if options.workers > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=2048, help="samples in a worker's batch")
    options = parser.parse_args()
    if options.workers == 1:
        process(0, options, "")
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        multiprocessing.spawn(process, (options, f"tcp://{common.HOST}:{common.free_port()}"), nprocs=options.workers)
