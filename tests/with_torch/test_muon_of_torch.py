"""Muon beside PyTorch's, which computes its iteration in bfloat16."""

import numpy as np
import pytest
import torch

from mpidl.rules import Muon


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 11)])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("scale", "theirs"), [("rms", "match_rms_adamw"), ("shape", "original")])
def test_steps_agree(shape, nesterov, scale, theirs):
    random = np.random.default_rng(0)
    rule = Muon(0.1, 0.9, nesterov, 0.05, scale)
    first = random.normal(size=shape).astype("float32")
    matrix, momentum, direction = first.copy(), np.zeros_like(first), np.zeros_like(first)
    workspace = np.empty(rule.workspace_size(*shape), np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(first.copy()))
    optimizer = torch.optim.Muon(
        [parameter], lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.05, adjust_lr_fn=theirs
    )
    for step in range(1, 4):
        gradient = random.normal(size=shape).astype("float32")
        flat = (each.reshape(-1) for each in (matrix, momentum, direction, gradient))
        parameters, *state, given = flat
        rule.update(parameters, tuple(state), given, step)
        rule.step(matrix, (momentum, direction), 0.1, workspace, False)
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        apart, moved = (np.linalg.norm(matrix - each) for each in (parameter.detach().numpy(), first))
        assert apart < 0.05 * moved
