"""Embeddings with ``sparse=True`` train as in PyTorch, with their rows in tables."""

import copy

import numpy as np
import pytest
import torch
from sparse_modules import (
    BATCHES,
    IDS,
    LABELS,
    OFFSETS,
    ROWS,
    RULES,
    SERVERS,
    Bags,
    Words,
    assert_trained_as_in_pytorch,
    bags,
    functional,
    outputs,
    plain,
    words,
)

import mpidl
from mpidl.data.batch import Batch
from mpidl.tables.sources import FirstRows
from mpidl.torch import TorchModel


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("make", "batches"), [(Bags, bags()), (Words, words()), (Words, words(np.int32))])
def test_tables_train_as_by_optimisers_of_pytorch(make, batches, rule):
    assert_trained_as_in_pytorch(make(), batches, *RULES[rule])


@pytest.mark.parametrize("padding", [None, 4, -1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_all_kinds(mode, padding):
    """Padding is in no bag, and has no row."""
    tables = assert_trained_as_in_pytorch(Bags(mode=mode, padding_idx=padding), bags())
    ids = np.concatenate([server.arrays()["ids"] for server in tables[0]])
    assert ids.size == len(set(np.concatenate(BATCHES).tolist()) - ({padding % ROWS} if padding is not None else set()))


@pytest.mark.parametrize("trained", [False, True])
def test_weights_of_samples(trained):
    """They may themselves be computed."""

    class Weighted(Bags):
        def forward(self, ids, offsets, weights):
            return super().forward(ids, offsets, weights * self.layer.bias.sum() if trained else weights)

    weights = np.linspace(-1, 2, IDS.size)
    assert_trained_as_in_pytorch(Weighted(mode="sum"), bags(weights=weights))


def test_bags_whose_last_offset_is_given():
    batches = [each._replace(inputs=(each.inputs[0], np.append(OFFSETS, IDS.size))) for each in bags()]
    assert_trained_as_in_pytorch(Bags(mode="mean", include_last_offset=True), batches)


def test_padding_of_an_embedding_reads_as_zeros_and_has_no_row():
    tables = assert_trained_as_in_pytorch(Words(padding_idx=2), words())
    alone = Batch(np.full(8, 2), LABELS[:4])
    assert 2 not in np.concatenate([server.arrays()["ids"] for server in tables[0][:1]])
    module = torch.nn.Sequential(torch.nn.Embedding(ROWS, 2, 2, sparse=True), torch.nn.Linear(2, 3)).double()
    model = TorchModel(module, "cross_entropy")
    model.rows = FirstRows(model.tables, 0, np.float64)
    bias = module[1].bias.detach().numpy()
    np.testing.assert_array_equal(model.evaluate(alone._replace(inputs=np.full(4, 2))).outputs, np.tile(bias, (4, 1)))


@pytest.mark.parametrize("offsets", [[0, 0, 0, 0, 0], [0, 0, 0, 0, 1]])
def test_batches_with_hardly_an_id(offsets):
    ids = np.full(offsets[-1], 3)
    for mode in ("sum", "mean", "max"):
        batches = [Batch((ids, np.array(offsets)), LABELS), *bags()]
        assert_trained_as_in_pytorch(Bags(mode=mode), batches)


def test_pieces_of_a_batch_are_summed():
    batches = [Batch(np.stack([each, each[::-1]], 1), np.arange(8) % 3) for each in BATCHES]

    class InPieces(Words):
        def forward(self, ids):
            return self.layer(torch.cat([self.first(ids[:, 0]), self.second(ids[:, 1]), self.other(ids % 7)], 1))

    assert_trained_as_in_pytorch(InPieces(), batches, micro_batches=3)


class Checkpointed(Bags):
    """Computes its forward pass again during the backward pass."""

    def __init__(self, reentrant):
        super().__init__(mode="sum")
        self.reentrant = reentrant

    def forward(self, ids, offsets):
        scale = self.layer.weight.sum()
        found = torch.utils.checkpoint.checkpoint(
            lambda scale: self.bags(ids, offsets) * scale, scale, use_reentrant=self.reentrant
        )
        return self.layer(found)


@pytest.mark.parametrize("reentrant", [False, True])
def test_forward_passes_that_are_computed_again(reentrant):
    assert_trained_as_in_pytorch(Checkpointed(reentrant), bags())


@pytest.mark.parametrize("algorithm", ["downpour", "ssp"])
def test_a_run_in_one_process_is_a_plain_loop(tmp_path, algorithm):
    """Afterwards, and after an evaluation of an earlier checkpoint, the module has the rows of then."""

    class Sums(Bags):
        def forward(self, ids):
            return self.layer(self.bags(ids))

    module, ids = Sums(mode="sum"), np.stack([*BATCHES, *BATCHES]) % ROWS
    data = mpidl.Arrays((ids, np.arange(8) % 3), (ids, np.arange(8) % 3))
    expected = copy.deepcopy(module)
    first = expected.bags.weight.detach().clone()
    options = {"loss": "cross_entropy", "rule": mpidl.Sgd(0.5), "batch": 8, "dir": tmp_path, "servers": SERVERS}
    summary = mpidl.train(module, data, algorithm=algorithm, epochs=3, **options)
    plain(expected, lambda rows: torch.optim.SGD(rows, 0.5), 3 * [Batch(ids, np.arange(8) % 3)])
    np.testing.assert_allclose(module.bags.weight.detach(), expected.bags.weight.detach(), rtol=0, atol=1e-12)
    assert summary["test_loss"] == pytest.approx(functional.cross_entropy(*outputs(expected, ids)).item())
    mpidl.evaluate(summary["run_dir"], module, data, step=0)
    assert torch.equal(module.bags.weight, first)


def test_what_a_module_looks_up_without_a_gradient_is_not_trained():
    class Aside(Bags):
        def forward(self, ids, offsets):
            with torch.no_grad():
                aside = self.bags(ids, offsets)
            return self.layer(self.bags(ids, offsets) + aside)

    assert_trained_as_in_pytorch(Aside(mode="sum"), bags())
