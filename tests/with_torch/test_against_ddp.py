"""Two replicas in step are PyTorch's DistributedDataParallel with two processes."""

import os
import time
from datetime import timedelta

import numpy as np
import pytest
import torch

import mpidl
from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Constant, Times
from mpidl.parameters import shards
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.torch import TorchModel
from torch_modules import functional, mlp

PROCESSES, BATCH, RATE, SECONDS = 2, 64, 0.05, 60
#: Batches all of one size: there, the mean that DDP takes is that of all samples.
SAMPLES = 22 * BATCH


@pytest.fixture
def split():
    every = mpidl.Digits().open().train.gather(np.arange(SAMPLES))
    return mpidl.data.ArraySplit(every.inputs, every.targets)


def process(rank, meeting, steps, end):
    """Be one of the processes of DDP: take every second batch."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed = torch.distributed
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=PROCESSES, timeout=timedelta(seconds=SECONDS)
    )
    module = mlp(dtype=torch.float64)
    parallel = torch.nn.parallel.DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for inputs, targets in steps[rank::PROCESSES]:
        optimizer.zero_grad()
        outputs = parallel(torch.from_numpy(inputs).double())
        functional.cross_entropy(outputs, torch.from_numpy(targets)).backward()
        optimizer.step()
    if rank == 0:
        torch.save(module.state_dict(), end)
    distributed.barrier()
    # Taking the group down aborts now and then, when the other process has closed its connection first.
    os._exit(0)


def trained_by_ddp(steps, directory):
    """Return what DDP makes of the module."""
    end = directory / "end.pt"
    started = torch.multiprocessing.spawn(process, (directory / "meeting", steps, end), nprocs=PROCESSES, join=False)
    try:
        until = time.monotonic() + SECONDS
        while not started.join(timeout=1):
            assert time.monotonic() < until, "DDP hangs"
    finally:
        for each in started.processes:
            each.kill()
    return torch.load(end, weights_only=True)


def trained_by_sync(split, portions):
    """Return what two replicas make of the module."""
    model = TorchModel(mlp(dtype=torch.float64), "cross_entropy")
    parts = [
        Shard(
            part,
            model.parameters[part.start : part.stop].copy(),
            ScheduledRule(mpidl.Sgd(RATE)),
            mpidl.Sync().shard_policy(PROCESSES),
            part.size,
        )
        for part in shards(model.layout.size, 3)
    ]
    training = Training(mpidl.Sync(), model, split, Schedule(portions, epochs=2))
    engine = VirtualEngine(training, parts, PROCESSES, time=VirtualTime(Times(Constant(1.0))))
    engine.run()
    return model.layout.views(engine.parameters())


@pytest.mark.long
def test_sync_is_ddp(split, tmp_path):
    portions = Portions(SAMPLES, BATCH, BATCH, seed=5)
    steps = []
    for number in range(2 * portions.per_epoch):
        batch = split.gather(portions.batches(number)[0])
        steps.append((batch.inputs.copy(), batch.targets.copy()))
    found, expected = trained_by_sync(split, portions), trained_by_ddp(steps, tmp_path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor.numpy(), rtol=1e-6, atol=1e-6, err_msg=name)
    begun = mlp(dtype=torch.float64).state_dict()["1.weight"].numpy()
    assert np.abs(found["1.weight"] - begun).max() > 0.01
