"""Weights of embeddings with ``sparse=True``: their memory, first values and owners, and what they can't be."""

import copy

import numpy as np
import pytest
import torch
from sparse_modules import (
    BATCHES,
    DIMENSION,
    IDS,
    LABELS,
    OFFSETS,
    ROWS,
    Bags,
    Words,
    bags,
    filled,
    plain,
    train,
    with_rows,
    words,
)

import mpidl
from mpidl.data.batch import Batch
from mpidl.nn.adaptation import ModelError
from mpidl.tables.lookups import NoRows
from mpidl.tables.sources import FirstRows, TablesInMemory
from mpidl.torch import TorchModel


def test_first_values_have_the_scale_of_the_weight():
    def scales(change):
        module = torch.nn.Sequential(
            torch.nn.Embedding(5000, 4, 0, sparse=True), torch.nn.Flatten(), torch.nn.Linear(4, 3)
        )
        change(module[0])
        model = TorchModel(module, "cross_entropy")
        return [(each.name, each.dimension, each.rows, each.normal, each.scale) for each in model.tables]

    assert scales(lambda each: None) == [("0.weight", 4, 5000, True, 1.0)]
    assert scales(lambda each: torch.nn.init.normal_(each.weight, std=0.02)) == [("0.weight", 4, 5000, True, 0.02)]
    assert scales(lambda each: torch.nn.init.uniform_(each.weight, -0.5, 0.5)) == [("0.weight", 4, 5000, True, 0.29)]
    assert scales(lambda each: torch.nn.init.zeros_(each.weight)) == [("0.weight", 4, 5000, True, 0.0)]


def huge(rows):
    module = Bags(mode="sum")
    module.bags = torch.nn.EmbeddingBag(rows, DIMENSION, mode="sum", sparse=True, device="meta", dtype=torch.float64)
    return module


def test_tables_that_no_memory_could_hold():
    rows = 2**58
    model = TorchModel(huge(rows), "cross_entropy")
    assert model.tables[0].rows == rows
    assert [tensor.name for tensor in model.layout] == ["layer.weight", "layer.bias"]
    tables = with_rows(model)
    batch = Batch((IDS + rows - ROWS, OFFSETS), LABELS)
    first, *_, last = train(model, tables, [batch] * 10)
    assert last < first
    model.finish()
    assert model.module.bags.weight.is_meta
    assert model.module.bags.weight.shape == (rows, DIMENSION)


def test_a_frozen_table_is_only_read():
    module = huge(99)
    module.bags.weight.requires_grad_(False)
    model = TorchModel(module, "cross_entropy")
    tables = with_rows(model)
    assert len(train(model, tables, bags())) == len(BATCHES)
    assert not any(len(server) for server in tables[0])


def test_a_frozen_weight_with_values_is_a_constant():
    module = Bags(mode="sum")
    module.bags.weight.requires_grad_(False)
    model, weight = TorchModel(module, "cross_entropy"), module.bags.weight.detach().clone()
    assert not model.tables
    np.testing.assert_array_equal(model.constants()["bags.weight"], weight)
    losses = plain(copy.deepcopy(module), None, bags())
    np.testing.assert_allclose(train(model, [], bags()), losses, atol=1e-12)


def test_a_weight_is_freed_when_training_begins_and_not_before():
    module = Bags(mode="sum")
    weight, before = module.bags.weight, module.bags.weight.detach().clone()
    model = TorchModel(module, "cross_entropy")
    model.rows = FirstRows(model.tables, 0, np.float64)
    with model.unchanged():
        model.rehearse(bags()[0])
    model.finish()
    assert module.bags.weight is weight
    assert torch.equal(weight, before)
    tables = with_rows(model)
    train(model, tables, bags())
    assert weight.untyped_storage().nbytes() == 0
    model.rows = NoRows()  # they are elsewhere
    model.finish()
    assert module.bags.weight.is_meta
    assert module.bags.weight.shape == before.shape
    assert module.bags.weight.requires_grad


def test_a_weight_that_repeats_a_number_is_never_allocated():
    module = Bags(mode="sum")
    weight = torch.full((1, 1), 0.01, dtype=torch.float64).expand(2**58, DIMENSION)
    module.bags = torch.nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", sparse=True)
    model = TorchModel(module, "cross_entropy")
    assert model.tables[0].scale == 0.01
    train(model, with_rows(model), bags())
    model.finish()
    assert module.bags.weight.is_meta


def test_a_module_is_its_owners_again():
    module = Words()
    names, weight = list(module.state_dict()), module.first.weight
    model = TorchModel(module, "cross_entropy")
    tables = with_rows(model)
    train(model, tables, words())
    other = TorchModel(module, "cross_entropy")  # while the first one has the module
    assert [each.name for each in other.tables] == [each.name for each in model.tables]
    tables = with_rows(other)
    train(other, tables, words())
    other.finish()
    assert list(module.state_dict()) == names
    assert module.first.weight is module.second.weight is weight
    module(torch.from_numpy(IDS)).sum().backward()
    assert weight.grad.is_sparse


def test_a_lookup_of_the_owner_is_not_trained():
    model = TorchModel(Bags(mode="sum"), "cross_entropy")
    with_rows(model)
    model.loss_and_gradient(bags()[0])
    expected = model.rows.take()[0][1]
    model.module(torch.from_numpy(IDS), torch.from_numpy(OFFSETS)).sum().backward()
    model.loss_and_gradient(bags()[0])
    np.testing.assert_array_equal(model.rows.take()[0][1], expected)


def test_a_copy_on_another_device_looks_up_the_same_rows():
    model = TorchModel(Words(), "cross_entropy")
    same = model.on(np)
    with_rows(model)
    expected, found = (each.loss_and_gradient(words()[0]) for each in (model, same))
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])
    sums = [sums for _, sums in model.rows.take().values()]
    model.loss_and_gradient(words()[0])
    for both, alone in zip(sums, model.rows.take().values(), strict=True):
        np.testing.assert_allclose(both, 2 * alone[1], rtol=1e-12)


def test_lookups_that_a_module_announces_are_those_it_makes():
    class Noting(TablesInMemory):
        def look_up(self, table, ids):
            self.seen = [*getattr(self, "seen", []), (table, ids.tolist())]
            return super().look_up(table, ids)

    module = Words(padding_idx=2)
    module.lookups = lambda ids: [("other", ids % 7), ("first", ids[:4]), ("second", torch.from_numpy(ids[4:]))]
    model = TorchModel(module, "cross_entropy")
    model.rows = Noting(with_rows(model))
    batch = words()[0]
    wanted = model.wanted(batch)
    model.loss_and_gradient(batch)
    assert [(table, ids.tolist()) for table, ids in wanted] == model.rows.seen
    assert [table for table, _ in wanted] == [1, 0, 0]
    del module.lookups
    assert model.wanted(batch) is None


@pytest.mark.long
def test_a_compiled_module():
    module = Bags(mode="sum")
    model = TorchModel(module, "cross_entropy", compile=True)
    expected, tables = filled(Bags(mode="sum"), model), with_rows(model)
    losses = plain(expected, lambda rows: torch.optim.SGD(rows, 0.5), bags())
    np.testing.assert_allclose(train(model, tables, bags()), losses, atol=1e-12)


def without_layers():
    return torch.nn.Embedding(5, 2, sparse=True)


def tied():
    module = Bags(mode="sum")
    module.last = torch.nn.Linear(DIMENSION, ROWS, bias=False).double()
    module.last.weight = module.bags.weight
    module.forward = lambda ids, offsets: module.last(module.bags(ids, offsets))
    return module


def penalised():
    module = Bags(mode="sum")
    module.forward = lambda ids, offsets: module.layer(module.bags(ids, offsets)) * module.bags.weight.norm()
    return module


def misnamed():
    module = Bags(mode="sum")
    module.lookups = lambda inputs: {"bag": inputs[0]}
    return module


def half():
    module = Bags(mode="sum")
    module.bags.float()
    return module


ON_SERVERS = r"bags.weight is a table on the servers \(sparse=True\)"
IDS_OF_TABLE = "table bags.weight: an id of"


@pytest.mark.parametrize(
    ("make", "ids", "line"),
    [
        (without_layers, IDS, "model: Embedding has no parameters beside its tables, expected at least one to train"),
        (half, IDS, "model: Bags: table bags.weight is float32, expected float64 as the parameters"),
        (lambda: Bags(max_norm=1.0), IDS, f"{ON_SERVERS}: max_norm=1.0 isn't possible there, expected none"),
        (
            lambda: Bags(mode="sum", scale_grad_by_freq=True),
            IDS,
            f"{ON_SERVERS}: scale_grad_by_freq=True isn't possible there",
        ),
        (tied, IDS, f"{ON_SERVERS}: linear can't have it, expected torch.nn.functional.embedding or embedding_bag"),
        (penalised, IDS, f"{ON_SERVERS}, which has no attribute norm"),
        (Bags, IDS - 1, f"{IDS_OF_TABLE} -1, expected 0 to 10"),
        (Bags, IDS + 2, f"{IDS_OF_TABLE} 11, expected 0 to 10"),
        (Bags, IDS / 2, "table bags.weight: ids of type float64, expected integers"),
        (misnamed, IDS, r"lookups: 'bag', expected an embedding with sparse=True, did you mean 'bags'\?"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(make, ids, line):
    def compute():
        model = TorchModel(make(), "cross_entropy")
        model.rows = FirstRows(model.tables, 0, np.float64)
        batch = Batch((ids, OFFSETS), LABELS)
        model.wanted(batch)
        model.loss_and_gradient(batch)

    with pytest.raises((mpidl.UsageError, ModelError), match=line) as error:
        compute()
    assert "\n" not in str(error.value)


def test_stages_have_no_tables():
    module = torch.nn.Sequential(torch.nn.Embedding(5, 2, sparse=True), torch.nn.Linear(2, 3), torch.nn.Linear(3, 3))
    with pytest.raises(mpidl.UsageError, match=r"topology.stages: 2, but 0.weight is a table on the servers"):
        mpidl.torch.sections(TorchModel(module, "cross_entropy"), 2)
