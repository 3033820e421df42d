"""Embeddings with ``sparse=True`` train as in PyTorch, with their rows in tables."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from mpidl.data.batch import Batch  # noqa: E402
from mpidl.nn.adaptation import ModelError  # noqa: E402
from mpidl.tables.lookups import NoRows  # noqa: E402
from mpidl.tables.sources import FirstRows, TablesInMemory  # noqa: E402
from mpidl.tables.table import Table  # noqa: E402
from mpidl.torch import TorchModel  # noqa: E402

functional = torch.nn.functional
ROWS, DIMENSION, SERVERS = 11, 3, 2
LABELS = np.array([0, 1, 1, 0, 2])
OFFSETS = np.array([0, 3, 3, 6, 7])
IDS = np.array([4, 1, 4, 2, 2, 9, 0, 4])
#: The same number of ids in each batch, so that samples keep their bags.
BATCHES = [IDS, (IDS * 3 + 1) % ROWS, np.full(8, 5), IDS[::-1].copy()]


class Bags(torch.nn.Module):
    """Bags of ids, and a layer of what they have become."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(1)
        self.bags = torch.nn.EmbeddingBag(ROWS, DIMENSION, sparse=True, **options)
        self.layer = torch.nn.Linear(DIMENSION, 3)
        self.double()

    def forward(self, ids, offsets, weights=None):
        return self.layer(self.bags(ids, offsets, weights))

    def lookups(self, inputs):
        return {"bags": inputs[0]}


class Words(torch.nn.Module):
    """Two features that share a table, and a table of another feature."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Embedding(ROWS, DIMENSION, sparse=True, **options)
        self.second = torch.nn.Embedding(ROWS, DIMENSION, sparse=True, **options)
        self.second.weight = self.first.weight
        self.other = torch.nn.EmbeddingBag(7, 2, sparse=True, mode="mean")
        self.layer = torch.nn.Linear(2 * DIMENSION + 2, 3)
        self.double()

    def forward(self, ids):
        others = self.other(ids.view(4, 2) % 7)
        return self.layer(torch.cat([self.first(ids[:4]), self.second(ids[4:]), others], 1))


def with_rows(model, rule=None, servers=SERVERS):
    """Let a model look up rows in tables of this process, and return these."""
    rule = mpidl.Sgd(0.5) if rule is None else rule
    tables = [[Table(spec, rule, capacity=99, dtype=np.float64) for _ in range(servers)] for spec in model.tables]
    model.rows = TablesInMemory(tables)
    return tables


def filled(module, model):
    """Return a module with the first rows of a model's tables."""
    same = copy.deepcopy(module)
    with torch.no_grad():
        for number, spec in enumerate(model.tables):
            ids = np.arange(spec.rows)
            found = FirstRows(model.tables, 0, np.float64).look_up(number, ids)
            same.get_parameter(spec.name).copy_(torch.from_numpy(found.rows[found.places]))
        for each in same.modules():
            if getattr(each, "padding_idx", None) is not None:
                each.weight[each.padding_idx] = 0
    return same


def train(model, tables, batches, rate=0.5):
    """Train a model by plain SGD, and its tables by their rule; return the losses."""
    losses = []
    for step, batch in enumerate(batches, 1):
        loss, gradient = model.loss_and_gradient(batch)
        losses.append(loss)
        model.parameters -= rate * gradient
        for number, (found, sums) in (model.rows.take() if tables else {}).items():
            for part, server in zip(found.parts, tables[number], strict=True):
                server.update(found.ids[part], sums[part], step)
    return losses


def plain(module, optimiser, batches, rate=0.5):
    """Train a module as one does without this package, its tables by an optimiser; return the losses."""
    losses, embeddings = [], [each for each in module.modules() if hasattr(each, "sparse")]
    rows = list(dict.fromkeys(each.weight for each in embeddings if each.weight.requires_grad))
    for each in embeddings:
        each.sparse = getattr(each, "mode", "") != "max"  # of which PyTorch has no sparse gradient
    others = [each for each in module.parameters() if all(each is not own for own in rows)]
    steps = [torch.optim.SGD(others, rate), *([optimiser(rows)] if rows else [])]
    for batch in batches:
        module.zero_grad()
        loss = functional.cross_entropy(module(*arguments(batch)), torch.from_numpy(batch.targets))
        loss.backward()
        for each in steps:
            each.step()
        losses.append(loss.item())
    return losses


def arguments(batch):
    return map(torch.from_numpy, batch.inputs if isinstance(batch.inputs, tuple) else (batch.inputs,))


def assert_trained_as_in_pytorch(module, batches, rule=None, optimiser=None, **options):
    """Assert that a module trains as without this package; return the tables."""
    model = TorchModel(module, "cross_entropy", **options)
    expected, tables = filled(module, model), with_rows(model, rule)
    losses = plain(expected, optimiser or (lambda rows: torch.optim.SGD(rows, 0.5)), batches)
    np.testing.assert_allclose(train(model, tables, batches), losses, rtol=0, atol=1e-12)
    evaluation = model.evaluate(batches[0])
    assert all(not rows for rows in model.rows.take().values())
    model.finish()
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(tensor, expected.state_dict()[name], rtol=0, atol=1e-12, err_msg=name)
    expected.eval()
    np.testing.assert_allclose(evaluation.outputs, expected(*arguments(batches[0])).detach(), rtol=0, atol=1e-12)
    return tables


def bags(**kinds):
    return [Batch((ids, OFFSETS, *kinds.values()), LABELS, number) for number, ids in enumerate(BATCHES)]


def words(dtype=np.int64):
    return [Batch(ids.astype(dtype), LABELS[:4], number) for number, ids in enumerate(BATCHES)]


RULES = {
    "sgd": (mpidl.Sgd(0.5), lambda rows: torch.optim.SGD(rows, 0.5)),
    "adagrad": (mpidl.Adagrad(0.1), lambda rows: torch.optim.Adagrad(rows, 0.1, eps=0)),
    "adam": (mpidl.Adam(0.1, epsilon=1e-30), lambda rows: torch.optim.SparseAdam(rows, 0.1, eps=1e-30)),
}


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
    expected = filled(module, TorchModel(module, "cross_entropy"))
    first = expected.bags.weight.detach().clone()
    options = {"loss": "cross_entropy", "rule": mpidl.Sgd(0.5), "batch": 8, "dir": tmp_path, "servers": SERVERS}
    summary = mpidl.train(module, data, algorithm=algorithm, epochs=3, **options)
    plain(expected, lambda rows: torch.optim.SGD(rows, 0.5), 3 * [Batch(ids, np.arange(8) % 3)])
    np.testing.assert_allclose(module.bags.weight.detach(), expected.bags.weight.detach(), rtol=0, atol=1e-12)
    assert summary["test_loss"] == pytest.approx(functional.cross_entropy(*outputs(expected, ids)).item())
    mpidl.evaluate(summary["run_dir"], module, data, step=0)
    assert torch.equal(module.bags.weight, first)


def outputs(module, ids):
    return module(torch.from_numpy(ids)), torch.arange(8) % 3


def test_what_a_module_looks_up_without_a_gradient_is_not_trained():
    class Aside(Bags):
        def forward(self, ids, offsets):
            with torch.no_grad():
                aside = self.bags(ids, offsets)
            return self.layer(self.bags(ids, offsets) + aside)

    assert_trained_as_in_pytorch(Aside(mode="sum"), bags())


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
