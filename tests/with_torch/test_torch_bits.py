"""One worker that trains a module is a plain PyTorch loop, bit for bit; groups are those of its optimisers."""

import numpy as np
import pytest
import torch

import mpidl
from mpidl.config import from_dict
from mpidl.job.job import Job
from mpidl.torch import TorchModel
from torch_modules import cnn, mlp, plain_loop, transformer

RUN = {"batch": 37, "steps": 100, "seed": 5}


def job(module):
    """Return the job that `mpidl.train` would make."""
    values = {"run": {"steps": RUN["steps"], "seed": RUN["seed"]}, "model": {"factory": "python:object"}}
    config = from_dict(values | {"data": {"batch": RUN["batch"]}}, data_source=mpidl.Digits())
    return Job.of(config, mpidl.Digits().open(), TorchModel(module, "cross_entropy"))


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("make", [mlp, cnn, transformer])
def test_one_worker_is_a_plain_loop(tmp_path, make, servers):
    module, plain = make(), make()
    mpidl.train(
        module, mpidl.Digits(), loss="cross_entropy", rule=mpidl.Sgd(0.05), servers=servers, dir=tmp_path, **RUN
    )
    plain_loop(plain, job(make()), 0.05)
    found, expected = module.state_dict(), plain.state_dict()
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        if "running" in name:
            # Old + (new - old): the last bit may be another.
            torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(found[name], tensor), name
    last = list(found)[-1]
    assert not torch.equal(found[last], make().state_dict()[last])


def test_dropout_follows_from_seed_and_batch(tmp_path):
    trained = []
    for noise, seed in enumerate([3, 3, 4]):
        module = mlp(dropout=0.3)
        torch.manual_seed(noise)
        model = TorchModel(module, "cross_entropy", seed=seed)
        mpidl.train(model, mpidl.Digits(), batch=37, steps=20, dir=tmp_path)
        trained.append(module.state_dict()["1.weight"].clone())
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])


def made():
    torch.manual_seed(3)
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(24, 10)).double()


GROUPS = [
    {"match": "1.*", "frozen": True},
    {"match": "*.bias", "rate": 0.5, "weight_decay": 0.0},
    {"match": "4.*", "weight_decay": 0.1},
]


@pytest.mark.parametrize(
    ("rule", "optimiser"),
    [
        (mpidl.Sgd(0.05), lambda groups: torch.optim.SGD(groups, lr=0.05)),
        (mpidl.rules.Adamw(0.01), lambda groups: torch.optim.AdamW(groups, lr=0.01)),
    ],
    ids=["sgd", "adamw"],
)
def test_groups_are_those_of_an_optimiser(tmp_path, rule, optimiser):
    module, plain = made(), made()
    mpidl.train(
        module, mpidl.Digits(), loss="cross_entropy", groups=GROUPS, rule=rule, batch=32, steps=20, dir=tmp_path
    )
    assert all(each.requires_grad for each in module.parameters())
    named, rate = dict(plain.named_parameters()), rule.rate
    for name in ("1.weight", "1.bias"):
        named[name].requires_grad_(False)
    optimiser = optimiser(
        [
            {"params": [named["2.weight"]]},
            {"params": [named["2.bias"], named["4.bias"]], "lr": rate / 2, "weight_decay": 0.0},
            {"params": [named["4.weight"]], "weight_decay": 0.1},
        ]
    )
    train = mpidl.Digits().open().train
    portions = mpidl.data.Portions(train.samples, 32, 128, seed=0)
    for indices in [each for portion in range(5) for each in portions.batches(portion)]:
        batch = train.gather(indices)
        optimiser.zero_grad()
        outputs = plain(torch.from_numpy(batch.inputs).double())
        torch.nn.functional.cross_entropy(outputs, torch.from_numpy(batch.targets).long()).backward()
        optimiser.step()
    for name, tensor in plain.named_parameters():
        torch.testing.assert_close(dict(module.named_parameters())[name], tensor, rtol=1e-11, atol=1e-12)
    assert torch.equal(module[1].weight, made()[1].weight)


def test_pytorch_computes_no_gradient_of_what_is_frozen_and_all_again_afterwards():
    model = TorchModel(made(), "cross_entropy")
    model.freeze(["1.weight", "1.bias"])
    batch = mpidl.Digits().open().train.gather(range(8))
    gradient = model.loss_and_gradient(batch)[1]
    assert [each.requires_grad for each in model.module.parameters()] == [False, False, True, True, True, True]
    assert not gradient[: 64 * 24 + 24].any()
    assert gradient[64 * 24 + 24 :].all()
    copied = model.on(np)
    assert list(copied.layout) == list(model.layout)
    assert [each.requires_grad for each in copied.module.parameters()] == [False, False, True, True, True, True]
    model.finish()
    assert all(each.requires_grad for each in model.module.parameters())
