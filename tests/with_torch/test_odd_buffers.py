"""Buffers of all layouts and dtypes: expanded, sparse, quantized, of few bits; used, changed, saved and exported."""

import numpy as np
import pytest
import torch

import mpidl
from mpidl.runs.load import export
from mpidl.torch import TorchModel
from mpidl.torch.module_state import copied

MATRIX = torch.tensor([[1.0, 0, 0], [0.5, 2, 0], [0, 0, 3]])


def buffers():
    return {
        "sparse_coo": MATRIX.to_sparse(),
        "sparse_csr": MATRIX.to_sparse_csr(),
        "sparse_csc": MATRIX.to_sparse_csc(),
        "sparse_bsr": MATRIX.to_sparse_bsr((3, 3)),
        "sparse_integers": MATRIX.long().to_sparse(),
        "sparse_infinite": (MATRIX * torch.inf).nan_to_num(0).to_sparse(),
        "uncoalesced": torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (3, 3)),
        "expanded": torch.arange(4).expand(3, 4),
        "expanded_mask": torch.tensor([0.0, -torch.inf]).expand(5, 2),
        "expanded_bools": torch.tensor(True).expand(3),
        "eight_bits": MATRIX.to(torch.float8_e4m3fn),
        "brain_floats": MATRIX.bfloat16(),
        "quantized": torch.quantize_per_tensor(MATRIX, 0.5, 0, torch.qint8),
        "complex_numbers": MATRIX + 1j,
        "empty": torch.empty(2, 0),
    }


def dense(tensor):
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return (tensor if tensor.layout is torch.strided else tensor.to_dense()).to(torch.complex64)


class Odd(torch.nn.Module):
    """A layer of a sparse product, with buffers that it changes, in place or anew."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 2)
        for name, buffer in buffers().items():
            self.register_buffer(name, buffer)
        self.register_buffer("private", MATRIX.to_sparse_csr(), persistent=False)

    def forward(self, inputs):
        if self.training:
            self.sparse_coo = self.sparse_coo * 0.9
            self.private = self.private * 0.9
            self.sparse_csr.values().mul_(0.9)
            self.expanded = self.expanded + 1
        return self.layer((self.sparse_csr @ (self.sparse_coo @ (self.private @ inputs.T))).T)


class Samples:
    """Six samples of two classes."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return np.arange(3, dtype=np.float32) + index, index % 2


@pytest.fixture
def train(tmp_path):
    def train(epochs, name, **options):
        module = Odd()
        mpidl.train(
            module, mpidl.Indexed(Samples(), Samples()), loss="cross_entropy", batch=3, epochs=epochs,
            rule=mpidl.Sgd(0.1), name=name, dir=tmp_path, **options,
        )  # fmt: skip
        return module

    return train


def test_they_are_used_changed_resumed_and_exported(train, tmp_path):
    whole = train(2, "whole")
    train(1, "stopped")
    resumed = train(2, "stopped", resume=True)
    export(tmp_path / "whole", "torch", file=tmp_path / "model.pt")
    loaded = Odd()
    loaded.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), assign=True)  # none copies to expanded
    plain = Odd()
    for _ in range(4):
        plain(torch.zeros(1, 3))
    for name, buffer in plain.named_buffers():
        assert whole.get_buffer(name).layout is buffer.layout, name
        for other in (whole, resumed, loaded) if name != "private" else (whole, resumed):
            torch.testing.assert_close(dense(other.get_buffer(name)), dense(buffer), msg=name)
    begun = train(1, "begun", initial=tmp_path / "model.pt")
    assert dense(begun.sparse_csr)[2, 2] == pytest.approx(3 * 0.9**6)
    assert torch.equal(resumed.layer.weight, whole.layer.weight)
    assert torch.equal(loaded.layer.weight, whole.layer.weight)
    assert not torch.equal(whole.layer.weight, Odd().layer.weight)


def test_a_rehearsal_leaves_them_alone():
    module = Odd()
    TorchModel(module, "cross_entropy").rehearse(mpidl.Indexed(Samples()).open().train.gather(np.arange(3)))
    for name, buffer in module.named_buffers():
        assert torch.equal(dense(buffer), dense(Odd().get_buffer(name))), name


def test_a_copy_has_its_own():
    module = Odd()
    other, _ = copied(module)
    other(torch.zeros(1, 3))
    assert torch.equal(dense(module.sparse_csr), dense(Odd().sparse_csr))
    assert not torch.equal(dense(other.sparse_csr), dense(module.sparse_csr))
