"""What PyTorch's default collate function, or a user's own, makes is a batch; what isn't is named in one line."""

import numpy as np
import pytest
import torch
from batches import KINDS, Collate, Frozen, Module, Pair, Samples, every
from scipy.sparse import csr_array
from torch.utils.data import default_collate

import mpidl
from mpidl.data import Batch, Indexed
from mpidl.data.collation import collate
from mpidl.errors import MpidlError
from mpidl.nn.adaptation import ModelError
from mpidl.torch import TorchModel

INDICES = np.array([4, 1, 5])


def split(kind, factor=1.0, workers=0):
    return Indexed(Samples(), Samples(), collate=Collate(kind, factor), workers=workers).open().train


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_a_batch_is_that_of_a_plain_loop(kind):
    train, module = split(kind), Module(KINDS[kind][1])
    features, labels = (torch.tensor(np.stack([Samples()[index][part] for index in INDICES])) for part in (0, 1))
    if kind == "reversed array":
        features = features.flip(1)
    if kind == "bfloat16":
        features = features.bfloat16().float()
    change = {"complex": 2**0.5, "packed sequence and tensor": 2, "sparse CSC and BSR": 2}
    halves = ("0-dim array", "0-dim tensor", "NumPy's scalar", "number")
    outputs = module.layer(features * change.get(kind, 0.5 if kind in halves else 1))
    expected = torch.nn.functional.cross_entropy(outputs, labels)
    gradient = torch.autograd.grad(expected, module.layer.weight)[0]
    model = TorchModel(module, "cross_entropy")
    for _ in range(2):
        loss, found = model.loss_and_gradient(train.gather(INDICES))
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        np.testing.assert_allclose(model.layout.views(found)["layer.weight"], gradient, rtol=1e-5, atol=1e-6)
    evaluation = model.evaluate(train.gather(INDICES))
    assert evaluation.loss == pytest.approx(3 * expected.item(), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_digests_are_of_what_is_in_a_batch(kind):
    found = split(kind).checksum()
    assert found == split(kind).checksum() != split(kind, factor=2.0).checksum() or kind == "graph"
    assert found.partition(" without ")[2] == {"object": "an object", "graph": "a Graph"}.get(kind, "")


def test_a_worker_process_sends_batches_of_all_kinds():
    there, here = (Indexed(Samples(), collate=every, workers=workers).open().train for workers in (1, 0))
    assert there.checksum() == here.checksum() != split("tensor").checksum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex64])
def test_tensors_are_stacked_as_pytorch_does(dtype):
    kinds = {False, dtype.is_floating_point or dtype.is_complex}
    for requires_grad in kinds:
        one = torch.ones(2).to(dtype).requires_grad_(requires_grad)
        samples = [Pair(one, {"a": torch.tensor(number)}) for number in range(3)]
        found, expected = collate(samples), default_collate(samples)
        assert torch.equal(torch.as_tensor(found.x), expected.x)
        assert found.other["a"].tolist() == expected.other["a"].tolist()
    assert collate([torch.eye(2).to_sparse()] * 3).to_dense().shape == (3, 2, 2)


def test_batches_of_pytorch_train_as_ours_do(tmp_path):
    losses = []
    for function in (None, default_collate):
        module, data = Module(lambda x: x), Indexed(Samples(), Samples(), collate=function)
        summary = mpidl.train(module, data, loss="cross_entropy", batch=4, epochs=3, dir=tmp_path)
        losses.append(summary["test_loss"])
    assert losses[0] == losses[1]


def test_arrays_may_be_tensors_whatever_they_require():
    inputs, labels = torch.rand(6, 3, requires_grad=True), torch.arange(6) % 2
    split = mpidl.data.ArraySplit(inputs.bfloat16(), labels)
    assert np.array_equal(split.gather(INDICES).inputs, inputs.bfloat16().detach().float().numpy()[INDICES])


def test_scipys_matrices_are_named():
    model = TorchModel(Module(lambda x: x), "cross_entropy")
    line = r"^inputs/0 of a batch: a csr_array, expected a tensor, such as of torch.sparse_csr_tensor, or an array, "
    with pytest.raises(ModelError, match=line):
        model.loss_and_gradient(Batch([csr_array(np.eye(3))], np.zeros(3, np.int64)))


@pytest.mark.parametrize("kind", ["packed sequence", "graph"])
def test_micro_batches_are_not_of_values_that_have_no_samples(kind):
    model = TorchModel(Module(KINDS[kind][1]), "cross_entropy", micro_batches=2)
    with pytest.raises(MpidlError, match=r"model\.micro_batches.* expected (1|tensors of one length)"):
        model.loss_and_gradient(split(kind).gather(INDICES))


def test_micro_batches_of_named_tuples_and_dataclasses():
    x, labels = torch.rand(4, 3), torch.arange(4) % 2
    losses = [
        TorchModel(Module(function), "cross_entropy", micro_batches=count).loss_and_gradient(Batch(inputs, labels))[0]
        for inputs, function in ((Pair(x, 1.0), lambda x, other: x), (Frozen(x, None), lambda value: value.x))
        for count in (1, 2)
    ]
    assert losses == pytest.approx([losses[0]] * 4)


class Scores(torch.nn.Module):
    """Takes its inputs by their names, as modules of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, values, mask):
        return self.layer(values * mask)


def test_samples_that_are_mappings_train_a_module_that_takes_them_by_name(tmp_path):
    samples = [{"values": [float(i), 1.0, 2.0], "mask": [1, 1, 0], "labels": i % 2} for i in range(20)]
    summary = mpidl.train(Scores(), Indexed(samples, samples), loss="cross_entropy", batch=4, epochs=1, dir=tmp_path)
    assert np.isfinite([summary["train_loss"], summary["test_loss"], summary["test_accuracy"]]).all()


class Stream(torch.utils.data.IterableDataset):
    def __len__(self):
        return 5

    def __iter__(self):
        return iter([])


class WithoutSamples(torch.utils.data.Dataset):
    def __len__(self):
        return 5


@pytest.mark.parametrize(("data", "found"), [(Stream(), "an IterableDataset"), (WithoutSamples(), "a WithoutSamples")])
def test_datasets_without_samples_by_number_are_one_line(data, found):
    expected = rf"^data: training: found {found}, expected samples by number \(__getitem__\): list\(data\), if they fit"
    with pytest.raises(mpidl.UsageError, match=expected) as caught:
        Indexed(data).open()
    assert caught.value.alone
