"""Loaders of PyTorch as data."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

import mpidl
from mpidl.data import Indexed
from mpidl.errors import UsageError
from torch_modules import functional, mlp

INPUTS, LABELS = torch.rand(53, 64), torch.arange(53) % 10
DATA = TensorDataset(INPUTS, LABELS)


@pytest.fixture
def options(tmp_path):
    return {"dir": str(tmp_path), "epochs": 2, "seed": 5}


def seen_by_a_loop(data, **options):
    batches = []

    def loop(replica):
        for inputs, labels in replica.batches():
            batches.append((inputs, labels))
            replica.step(functional.cross_entropy(replica.model(inputs), labels))

    summary = mpidl.loop(loop, mlp(), data, **options)
    return batches, summary


def test_a_loader_keeps_its_batches(options):
    batches, summary = seen_by_a_loop(DataLoader(DATA, batch_size=9, shuffle=True, drop_last=True), **options)
    assert {len(labels) for _, labels in batches} == {9}
    assert len(batches) == 2 * 5
    assert summary["samples"] == 90


def test_arguments_take_precedence(options):
    batches, _ = seen_by_a_loop(DataLoader(DATA, batch_size=9, shuffle=True), batch=25, **options)
    assert [len(labels) for _, labels in batches] == [25, 25, 3] * 2


def test_a_loader_keeps_its_order_its_sampler_and_its_collate_function(options):
    batches, _ = seen_by_a_loop(DataLoader(DATA, batch_size=20), **options)
    assert torch.equal(torch.cat([labels for _, labels in batches]), LABELS.repeat(2))
    batches, _ = seen_by_a_loop(DataLoader(DATA, batch_size=20, sampler=SubsetRandomSampler(range(13))), **options)
    assert sum(len(labels) for _, labels in batches) == 26
    doubled = DataLoader(DATA, batch_size=53, collate_fn=lambda samples: (2 * INPUTS[: len(samples)], LABELS))
    batches, _ = seen_by_a_loop(doubled, **options)
    assert torch.equal(batches[0][0], 2 * INPUTS)


def test_train_takes_loaders_of_several_splits(options):
    loaders = (DataLoader(DATA, batch_size=9, shuffle=True), DataLoader(DATA, batch_size=30))
    module, expected = mlp(), mlp()
    summary = mpidl.train(module, loaders, loss="cross_entropy", **options)
    trained = mpidl.train(expected, Indexed(DATA, DATA), loss="cross_entropy", batch=9, **options)
    assert summary["test_loss"] == pytest.approx(trained["test_loss"], rel=1e-5)
    for own, other in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.equal(own, other)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(INPUTS[0], LABELS[0])])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (DataLoader(Stream(), batch_size=2), "a DataLoader of a Stream, expected a dataset with a length"),
        (DataLoader(DATA, batch_size=None), "without batches, expected a batch_size"),
        ((DataLoader(DATA),) * 4, "4 loaders, expected at most 3"),
    ],
)
def test_loaders_that_do_not_fit_are_one_line(options, data, says):
    with pytest.raises(UsageError, match=says):
        mpidl.train(mlp(), data, loss="cross_entropy", **options)


def test_other_data_stay_as_they_are():
    from mpidl.data.loaders import of_loaders

    for data in (None, mpidl.Digits(), (), (1, 2), np.zeros(3)):
        assert of_loaders(data)[0] is data
