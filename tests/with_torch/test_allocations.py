"""A step of a module allocates what PyTorch's own passes allocate, and no tensor more."""

import json

import numpy as np
import pytest
import torch

import mpidl
from mpidl.torch import TorchModel
from torch_modules import cnn, functional, mlp


@pytest.fixture
def allocations(tmp_path):
    """Return a function that calls another and returns the bytes of all tensors that this allocates, in order."""

    def count(step):
        for _ in range(2):  # what is allocated once doesn't count
            step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            step()
        profile.export_chrome_trace(str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        events.sort(key=lambda event: event.get("ts", 0))
        sizes = [event["args"]["Bytes"] for event in events if event["name"] == "[memory]"]
        return [size for size in sizes if size > 0]

    return count


@pytest.fixture
def batch():
    return mpidl.Digits().open().train.gather(np.arange(13))


def bare(module, batch, dtype=torch.float32):
    """Return a step of the module without this package."""
    inputs, targets = torch.from_numpy(batch.inputs).to(dtype), torch.from_numpy(batch.targets)

    def step():
        module.zero_grad()
        loss = functional.cross_entropy(module(inputs), targets)
        loss.backward()
        loss.item()

    return step


@pytest.mark.parametrize("make", [mlp, cnn])
def test_a_step_allocates_what_the_module_does(allocations, batch, make):
    model, seen = TorchModel(make(), "cross_entropy"), []
    model.module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].data_ptr()))
    expected = allocations(bare(make(), batch))
    assert len(expected) > 10
    assert allocations(lambda: model.loss_and_gradient(batch)) == expected
    assert set(seen) == {batch.inputs.ctypes.data}, "the batch is copied"


def test_converted_batches_have_memory_that_is_kept(allocations, batch):
    model = TorchModel(mlp(dtype=torch.float64), "cross_entropy")
    expected = allocations(bare(mlp(dtype=torch.float64), batch, torch.float64))
    assert allocations(lambda: model.loss_and_gradient(batch)) == expected
