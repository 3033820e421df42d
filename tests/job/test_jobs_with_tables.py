"""Jobs of models with tables: what the configuration says of them, and what can't be trained with them."""

import numpy as np
import pytest

from mpidl.config import TablesSection, from_dict
from mpidl.data import ArraySplit, Dataset
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.job.ready import local_model
from mpidl.nn import Dense, Network, SparseEmbedding
from mpidl.rules import Adagrad, Adam, Sgd
from mpidl.sparse.feature import in_one_process

SPLIT = ArraySplit(np.arange(24).reshape(12, 2) % 7, np.arange(12) % 3)


def job(sparse=True, dtype="float32", **sections):
    layers = [SparseEmbedding(4, 7, name="words"), Dense(3)] if sparse else [Dense(3)]
    config = from_dict({"data": {"source": "digits", "batch": 4}, "model": {"factory": "a:b"}} | sections)
    return Job.of(config, Dataset("test", (2,), 3, SPLIT, SPLIT), Network(layers, (2,), dtype=dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ids_reach_the_model_as_they_are(dtype):
    made = job(dtype=dtype)
    batch = made.dataset.train.gather(np.arange(12))
    assert made.original.wanted(batch)[0].ids.tolist() == (np.arange(24) % 7).tolist()


OF_TABLES = "but the model has tables, such as 'words'"


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"algorithm": {"name": "sync"}},
            "algorithm.name: sync exchanges by reduction, but the rows of the model's tables are on servers, expected "
            "'backup_sync' with backup = 0",
        ),
        (
            {"algorithm": {"name": "hogwild"}},
            "algorithm.name: hogwild exchanges by shared memory, but the rows of the model's tables are on servers, "
            "expected one such as 'downpour'",
        ),
        (
            {"algorithm": {"name": "sandblaster"}},
            "algorithm.name: sandblaster exchanges by operations, but the rows of the model's tables are on servers, "
            "expected one such as 'downpour'",
        ),
        ({"topology": {"partitions": 2}}, f"topology.partitions: 2, {OF_TABLES}, expected 1"),
        ({"topology": {"partitions": 2, "stages": 2}}, f"topology.partitions: 2, {OF_TABLES}, expected 1"),
        (
            {"algorithm": {"name": "ringmaster"}},
            f"algorithm.stops: true, {OF_TABLES}, whose rows are pushed with each gradient; expected false",
        ),
        (
            {"algorithm": {"name": "backup_sync", "restart": True}},
            f"algorithm.restart: true, {OF_TABLES}, whose rows are pushed with each gradient; expected false",
        ),
        (
            {"device": {"shards": True}},
            f"device.shards: true, {OF_TABLES}, whose rows are in the servers' memory; expected false",
        ),
    ],
)
def test_what_can_not_be_trained_with_tables_is_one_line(sections, line):
    with pytest.raises(UsageError) as error:
        job(**sections)
    assert str(error.value) == line
    job(sparse=False, **sections)


def test_virtual_clusters_have_no_relays_for_tables():
    made = job(topology={"relay": True})
    with pytest.raises(UsageError) as error:
        in_one_process(place(made, 2), made.original, [], alone=False)
    assert str(error.value) == "topology.relay: true, but virtual clusters have none for tables, expected false"


@pytest.mark.parametrize("kind", ["auto", "cpu"])
def test_a_network_with_tables_computes_on_the_cpu(kind):
    made = place(job(device={"kind": kind}), 1)
    assert local_model(made).device is None


def test_a_network_with_tables_on_a_gpu_is_one_line():
    message = "^device.kind: 'cuda', but the model has tables, whose rows are in the host's memory$"
    with pytest.raises(UsageError, match=message):
        local_model(place(job(device={"kind": "cuda"}), 1))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"max_rows": 1000}, "tables.max_rows: 1000"),
        ({"admission": 0.5}, "tables.admission: 0.5"),
        ({"prefetch": 0}, "tables.prefetch: 0"),
        ({"rule": "adam"}, "tables.rule: 'adam'"),
    ],
)
def test_a_section_of_tables_for_a_model_without_is_one_line(given, line):
    with pytest.raises(UsageError) as error:
        job(sparse=False, tables=given)
    assert str(error.value) == f"{line}, but the model has no tables; leave it out"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_rows": 1e6, "max_age": 1000}, TablesSection(max_rows=1_000_000, max_age=1000)),
        ({"admission": 3}, TablesSection(admission=3)),
        ({"admission": 0.25}, TablesSection(admission=0.25)),
    ],
)
def test_what_a_section_of_tables_says(given, expected):
    config = from_dict({"data": {"source": "digits"}, "model": {"factory": "a:b"}, "tables": given})
    assert config.tables == expected
    assert from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"max_rows": 0}, "tables.max_rows: expected int >= 1 or float, found 0"),
        ({"max_rows": 10.5}, "tables.max_rows: 10.5, expected a whole number from 1 to 2**63 - 1"),
        ({"max_age": 0.5}, "tables.max_age: 0.5, expected a whole number from 1 to 2**63 - 1"),
        ({"admission": 0}, "tables.admission: expected int >= 1 and <= 255 or float > 0 and < 1, found 0"),
        ({"admission": 256}, "tables.admission: expected int >= 1 and <= 255 or float > 0 and < 1, found 256"),
        ({"admission": 1.5}, "tables.admission: expected int >= 1 and <= 255 or float > 0 and < 1, found 1.5"),
        ({"prefetch": -1}, "tables.prefetch: expected int >= 0, found -1"),
        ({"rule": "adams"}, "tables.rule: unknown name 'adams', did you mean 'adam'?"),
        ({"rows": 3}, "tables.rows: unknown key, did you mean 'max_rows'?"),
    ],
)
def test_sections_of_tables_that_are_wrong(given, line):
    with pytest.raises(UsageError) as error:
        from_dict({"data": {"source": "digits"}, "model": {"factory": "a:b"}, "tables": given})
    assert str(error.value) == line


@pytest.mark.parametrize(
    ("section", "server", "expected"),
    [
        (TablesSection(), Adam(0.5, beta1=0.5), Adam(0.5, beta1=0.5)),
        (TablesSection(rate=0.25), Adam(0.5, beta1=0.5), Adam(0.25, beta1=0.5)),
        (TablesSection(rule="adam", rate=0.25), Adam(0.5, beta1=0.5), Adam(0.25, beta1=0.5)),
        (TablesSection(rule="sgd"), Adam(0.5), Sgd()),
        (TablesSection(rule="sgd", rate=2.0), None, Sgd(2.0)),
        (TablesSection(), None, Adagrad()),
    ],
)
def test_the_rule_of_rows(section, server, expected):
    assert section.rule_beside(server) == expected
