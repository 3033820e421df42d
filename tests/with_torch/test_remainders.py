"""A batch of one sample, the remainder of an epoch, which batch normalisation refuses."""

import numpy as np
import pytest
import torch

import mpidl
from mpidl.errors import UsageError


@pytest.fixture
def train(tmp_path):
    def train(samples, **keys):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        inputs, labels = np.random.default_rng(0).random((samples, 3)), np.arange(samples) % 2
        data = mpidl.Arrays((inputs, labels), (inputs[:4], labels[:4]))
        keys = {"batch": 4, "epochs": 2} | keys
        return mpidl.train(module, data, loss="cross_entropy", dir=tmp_path, **keys)

    return train


LINE = (
    r"^model: Sequential raised ValueError: Expected more than 1 value per channel .*: the batch is an epoch's "
    r"remainder of 1, data\.batch is 4; data\.drop_last leaves it out$"
)


def test_it_is_found_before_training_and_named(train, tmp_path):
    with pytest.raises(UsageError, match=LINE):
        train(13)
    assert not list(tmp_path.iterdir())


def test_without_it(train):
    assert train(13, drop_last=True)["samples"] == 24
    assert train(13, config={"data": {"drop_last": True}}, steps=5, epochs=None)["samples"] == 20


def test_remainders_of_more_samples_and_runs_that_end_before_it(train):
    assert train(14)["samples"] == 28
    assert train(13, steps=3, epochs=None)["samples"] == 12
    with pytest.raises(UsageError, match=LINE):
        train(13, steps=4, epochs=None)
    with pytest.raises(UsageError, match=r"^data\.drop_last: true, but 3 training samples make no batch of 4$"):
        train(3, drop_last=True)
