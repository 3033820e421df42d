"""PyTorch modules trained by mpidl against plain PyTorch: one process against a bare loop, ranks against DDP.

    python benchmarks/bring.py [--rounds 5] [--only alone mlp resnet transformer]

Both sides have the same module, data, batches and optimiser, one thread per process, and take turns. "alone" is the
time of a step in one process, relative to a bare loop. The others compare samples/s of 2 workers and 1 server, and
of DiLoCo on 2 workers, with those of DistributedDataParallel with 2 processes (gloo) on the same cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import multiprocessing, nn
from torch.nn import functional

import harness
import mpidl
from peers.common import HOST, free_port

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
SAMPLES, RATE = 4096, 0.01
#: Samples of a batch, and steps of all workers together.
CASES = {"mlp": (128, 400), "small": (128, 4000), "resnet": (32, 40), "transformer": (32, 60)}
if harness.QUICK:
    CASES = {case: (batch, 4) for case, (batch, _) in CASES.items()}
COMPARISONS = ["alone", "mlp", "resnet", "transformer"]


def module(case: str) -> nn.Module:
    """Return the module of a case, with the same values on every process."""
    torch.manual_seed(0)
    if case == "resnet":
        from jobs.torch_resnet import ResNet18

        return ResNet18(3, 10, width=32)
    if case == "transformer":
        from jobs.torch_transformer import LanguageModel

        return LanguageModel(dropout=0.0)
    sizes = (784, 1024, 1024, 10) if case == "mlp" else (784, 62, 10)
    layers = [each for pair in pairwise(sizes) for each in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def arrays(case: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets."""
    random = np.random.default_rng(0)
    if case == "transformer":
        codes = random.integers(0, 256, (SAMPLES, 65))
        return codes[:, :-1].copy(), codes[:, 1:].copy()
    shape = (32, 32, 3) if case == "resnet" else (784,)
    return random.random((SAMPLES, *shape), np.float32), random.integers(0, 10, SAMPLES)


class Pairs:
    """Samples by number."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.inputs[index], self.targets[index]


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over all targets."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def ours(
    case: str, directory: str, algorithm: mpidl.algorithms.Algorithm | None = None, rule: mpidl.rules.Rule | None = None
) -> float:
    """Train with mpidl in this process, or as one of an MPI job's ranks; return samples/s."""
    torch.set_num_threads(1)
    inputs, targets = arrays(case)
    batch, steps = CASES[case]
    few = (inputs[:batch], targets[:batch])
    data: Any = mpidl.Arrays((inputs, targets), few)
    if targets.ndim > 1:
        data = mpidl.Indexed(Pairs(inputs, targets), Pairs(*few))
    summary = mpidl.train(
        module(case), data, loss=loss, algorithm=algorithm, rule=rule, batch=batch, steps=steps, dir=directory,
        report=1e6, checkpoint_every=1e6,
    )  # fmt: skip
    return float(summary["samples_per_second"])


def bare(case: str, optimizer: Callable[..., torch.optim.Optimizer], rank: int = 0, processes: int = 1) -> float:
    """Train by a plain loop, of several processes with gradients averaged by DDP; return samples/s of all."""
    torch.set_num_threads(1)
    inputs, targets = map(torch.from_numpy, arrays(case))
    (batch, steps), network = CASES[case], module(case)
    model = network if processes == 1 else nn.parallel.DistributedDataParallel(network, gradient_as_bucket_view=True)
    stepper = optimizer(network.parameters(), lr=RATE)
    order = torch.Generator().manual_seed(rank)
    done, started = 0, time.perf_counter()
    while done < steps // processes:
        for indices in torch.randperm(SAMPLES, generator=order).split(batch)[: steps // processes - done]:
            if done == 1:  # initialisation isn't timed
                started = time.perf_counter()
            stepper.zero_grad()
            found = loss(model(inputs[indices]), targets[indices])
            found.backward()
            stepper.step()
            found.item()
            done += 1
    return (done - 1) * batch * processes / (time.perf_counter() - started)


def process(rank: int, case: str, port: int, results: Any) -> None:
    """Be one of the processes of DDP."""
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{HOST}:{port}", rank=rank, world_size=2)
    speed = bare(case, torch.optim.Adagrad, rank, 2)
    if rank == 0:
        results.put(speed)
    torch.distributed.destroy_process_group()


def ddp(case: str) -> float:
    """Return samples/s of two processes of DDP."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(process, (case, free_port(), results), nprocs=2)
    return float(results.get())


def on_ranks(case: str, algorithm: str) -> float:
    """Return samples/s of two workers of mpidl: with a server and a coordinator, or with a coordinator alone."""
    ranks = 4 if algorithm == "downpour" else 3
    with tempfile.TemporaryDirectory() as directory:
        done = harness.start(ranks, "--rank", case, algorithm, directory, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def alone(rounds: int) -> list[dict[str, Any]]:
    """Compare steps in one process."""
    rows = []
    rules = {"sgd": (torch.optim.SGD, mpidl.Sgd(RATE)), "adagrad": (torch.optim.Adagrad, mpidl.Adagrad(RATE))}
    for case in ("small", "mlp"):
        for name, (optimizer, rule) in rules.items():
            pairs = []
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as directory:
                    pairs.append((bare(case, optimizer), ours(case, directory, rule=rule)))
            theirs, speed = (statistics.median(each) for each in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            rows.append({"case": f"alone, {case}, {name}", "PyTorch": theirs, "mpidl": speed, "time ratio": ratio})
    return rows


def against_ddp(case: str, rounds: int) -> dict[str, Any]:
    """Compare two workers and a server with two processes of DDP."""
    found = [(ddp(case), on_ranks(case, "downpour"), on_ranks(case, "diloco")) for _ in range(rounds)]
    theirs, speed, diloco = (statistics.median(each) for each in zip(*found, strict=True))
    ratio = statistics.median(each[1] / each[0] for each in found)
    return {"case": case, "DDP": theirs, "mpidl": speed, "DiLoCo": diloco, "speed ratio": ratio}


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(description="PyTorch modules trained by mpidl against plain PyTorch.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=COMPARISONS, default=COMPARISONS)
    parser.add_argument("--rank", nargs=3, metavar=("CASE", "ALGORITHM", "DIR"), help="be a rank of mpidl")
    options = harness.parse(parser, rounds=1, only=["alone"])
    if options.rank:
        case, name, directory = options.rank
        speed = ours(case, directory, mpidl.Downpour() if name == "downpour" else mpidl.algorithms.Diloco())
        print(speed, flush=True)
        return
    rows = alone(options.rounds) if "alone" in options.only else []
    rows += [against_ddp(case, options.rounds) for case in COMPARISONS[1:] if case in options.only]
    print(harness.table(rows))
    harness.save("bring", rows)


if __name__ == "__main__":
    main()
