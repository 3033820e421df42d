"""Rows of tables in the files of a checkpoint: they come back on any number of servers, whatever a table is called."""

import h5py
import numpy as np
import pytest
import saved

from mpidl.errors import DivergenceError, MpidlError, UsageError
from mpidl.parameters import Layout, Range, shards
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import scratch
from mpidl.storage.integrity import seal, verify
from mpidl.storage.table_files import check_tables, saved_tables
from mpidl.storage.writer import CheckpointIndex, save_index, save_shard
from mpidl.tables.distinct import owner
from mpidl.tables.lookups import TableSpec

LAYOUT = Layout([("0-dense/weight", (11, 3))])
#: Names of which one is in another's path, or can't be a path; the last table has no rows.
SPECS = [
    TableSpec("users", 3, 1000),
    TableSpec("users/ids", 2),
    TableSpec("a\0/.//%2F", 1),
    TableSpec("", 1),
    TableSpec("large", 16, scale=0.5),
    TableSpec("empty", 4, 5, normal=False),
]
EXTREMES = np.array([0, -1, 2**63 - 1, -(2**63)])


def table(spec, seed=0, states=2):
    """Return the arrays of all rows of a table."""
    random = np.random.default_rng([seed, spec.dimension])
    count = {"empty": 0, "large": 60_000, "": 1}.get(spec.name, 40)
    ids = random.choice(10**6, count, replace=False)
    if spec.rows is None and count > 1:
        ids[:4] = EXTREMES
    return {
        "ids": ids,
        "rows": random.normal(size=(count, spec.dimension)).astype(np.float32),
        "state": random.normal(size=(count, states * spec.dimension)).astype(np.float32),
        "uses": random.integers(0, 100, (count, 2)),
    }


def part(arrays, server, servers):
    own = owner(arrays["ids"], servers) == server
    return {name: values[own] for name, values in arrays.items()}


def save(directory, servers=3, specs=SPECS, change=lambda number, arrays: arrays):
    """Save a checkpoint with tables, and return it with their arrays by name."""
    unfinished = scratch(directory, 1)
    directory.mkdir(exist_ok=True)
    tables = {spec.name: table(spec) for spec in specs}
    for number, own in enumerate(shards(LAYOUT.size, servers)):
        values = np.zeros(own.size, np.float32)
        state = {"parameters": values, "rule/sum": values + 1, "clock": np.array(7)}
        for name, arrays in tables.items():
            held = part(arrays, number, servers)
            held["counts"] = np.array([5 + number, 0, 0, 0, held["ids"].size])
            state |= {f"tables/{name}/{array}": values for array, values in held.items()}
        save_shard(unfinished, number, own, change(number, state))
    position = saved.POSITION._replace(step=42)
    save_index(unfinished, CheckpointIndex(LAYOUT, servers, position, "[run]\n", "0.0.1", {}, tables=specs))
    return Checkpoint(directory / "42"), tables


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save(tmp_path_factory.mktemp("tables") / "checkpoints")


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_a_server_gets_its_rows(checkpoint, servers):
    checkpoint, tables = checkpoint
    found = saved_tables(checkpoint)
    assert found.keys() == tables.keys()
    for name, arrays in tables.items():
        in_files = [part(arrays, number, 3) for number in range(3)]
        assert (len(found[name]), found[name].states, found[name].dtype) == (len(arrays["ids"]), 2, np.float32)
        for server in range(servers):
            own = [part(each, server, servers) for each in in_files]
            blocks = list(found[name].blocks(server, servers, 7 if name == "users" else 10_000))
            assert max(len(block["ids"]) for block in blocks) <= (7 if name == "users" else 10_000)
            for array in arrays:
                read = np.concatenate([block[array] for block in blocks])
                np.testing.assert_array_equal(read, np.concatenate([each[array] for each in own]))
                assert read.dtype == arrays[array].dtype


def test_all_arrays(checkpoint):
    checkpoint, tables = checkpoint
    verify(checkpoint.path)
    assert checkpoint.tables == SPECS
    for name, found in saved_tables(checkpoint).items():
        in_files = [part(tables[name], number, 3) for number in range(3)]
        for array in ("ids", "rows"):
            np.testing.assert_array_equal(found.read(array), np.concatenate([each[array] for each in in_files]))
        assert [each.read("counts")[0] for each in found.parts] == [5, 6, 7]


def test_the_dense_part_is_as_without_tables(checkpoint):
    checkpoint, _ = checkpoint
    assert checkpoint.states == ("sum",)
    state = checkpoint.shard_state(Range(0, LAYOUT.size))
    assert state.keys() == {"parameters", "rule/sum", "clock"}
    np.testing.assert_array_equal(state["rule/sum"], np.ones(LAYOUT.size))
    assert dict(checkpoint.arrays("parameters")).keys() == {"0-dense/weight"}


def test_h5py_reads_the_rows(checkpoint):
    checkpoint, tables = checkpoint
    with h5py.File(checkpoint.path / "shard-1.h5") as file:
        expected = part(tables["users"], 1, 3)
        for array, values in expected.items():
            np.testing.assert_array_equal(file[f"tables/users/{array}"], values)


def test_a_checkpoint_without_tables_has_none(tmp_path):
    saved.save(tmp_path)
    checkpoint = Checkpoint(tmp_path / str(saved.POSITION.step))
    assert checkpoint.tables == []
    assert saved_tables(checkpoint) == {}


def test_a_row_that_is_not_finite_is_not_saved(tmp_path):
    arrays = table(SPECS[0])
    arrays["rows"][7, 1] = np.nan
    values = np.zeros(2, np.float32)
    state = {"parameters": values, "clock": np.array(0)}
    state |= {f"tables/users/{name}": values for name, values in arrays.items()}
    with pytest.raises(
        DivergenceError, match=r"^rows of table 'users' of shard 1 are NaN or infinite: try a lower rate"
    ):
        save_shard(tmp_path / ".1", 1, Range(0, 2), state, finite=True)
    assert not (tmp_path / ".1").exists()
    save_shard(tmp_path / ".1", 1, Range(0, 2), state)


@pytest.mark.parametrize(
    ("specs", "line"),
    [
        (SPECS[1:], "42: table 'users': found 1000 rows of dimension 3, the model has none$"),
        ([*SPECS, TableSpec("more", 2)], "table 'more': found none, the model has any number of rows of dimension 2$"),
        ([TableSpec("users", 3, 999), *SPECS[1:]], "found 1000 rows of dimension 3, the model has 999 rows of"),
        ([TableSpec("users", 8, 1000), *SPECS[1:]], "of dimension 3, the model has 1000 rows of dimension 8$"),
    ],
)
def test_other_tables_are_one_line(checkpoint, specs, line):
    check_tables(checkpoint[0], SPECS[::-1])
    with pytest.raises(UsageError, match=line):
        check_tables(checkpoint[0], specs)


def replaced(path, values):
    def change(file):
        del file[path]
        file[path] = values

    return change


def removed(file):
    del file["tables/users/uses"]


#: What is done to a file, and what a line says of it.
HOSTILE = {
    "missing": (removed, "has no uses of table 'users'"),
    "link": (replaced("tables/users/ids", h5py.ExternalLink("/etc/hostname", "x")), "is a link, expected none"),
    "fewer ids": (
        replaced("tables/users/ids", np.arange(3)),
        r"found float32 of shape \(9, 3\), expected float32 of .*3",
    ),
    "float ids": (replaced("tables/users/ids", np.zeros(9)), "ids of table 'users': found float64"),
    "texts": (replaced("tables/users/rows", ["a"] * 9), "expected numbers or one text"),
    "no float": (replaced("tables/users/rows", np.zeros((9, 3), "c8")), "expected float32 or float64"),
    "wrong dimension": (replaced("tables/users/rows", np.zeros((9, 4), "f4")), r"of shape \(9, 4\), expected"),
    "large endian": (replaced("tables/users/ids", np.zeros(9, ">i8")), "found >i8"),
    "twice": (
        replaced("tables/users/ids", np.full(9, np.flatnonzero(owner(np.arange(100), 3) == 1)[0])),
        "table 'users' has two rows of an id",
    ),
    "of others": (replaced("tables/users/ids", np.arange(9)), "has rows of table 'users' of other servers"),
}


def test_two_rows_of_an_id_are_refused_by_each_reader(tmp_path):
    path = save(tmp_path / "checkpoints", specs=SPECS[:2])[0].path
    with h5py.File(path / "shard-1.h5", "r+") as file:
        HOSTILE["twice"][0](file)
    seal(path / "shard-1.h5")
    with pytest.raises(MpidlError, match="table 'users' has two rows of an id"):
        saved_tables(Checkpoint(path))["users"].read("ids")


@pytest.mark.parametrize("how", HOSTILE)
def test_other_contents_are_one_line(how, tmp_path):
    change, line = HOSTILE[how]
    path = save(tmp_path / "checkpoints", specs=SPECS[:2])[0].path
    with h5py.File(path / "shard-1.h5", "r+") as file:
        change(file)
    seal(path / "shard-1.h5")
    with pytest.raises(MpidlError, match=line) as caught:
        list(saved_tables(Checkpoint(path))["users"].blocks(1, 3))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
