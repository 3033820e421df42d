"""Sources that belong to workers as one dataset, and data that a user's function returns."""

import sys
from itertools import pairwise

import numpy as np
import pytest

import mpidl
from mpidl.config import from_dict, load
from mpidl.data import Arrays, Factory, Indexed, Private, Ragged, held_out
from mpidl.errors import UsageError
from mpidl.job.build import build

CONFIG = {"run": {"epochs": 1}, "model": {"layer": [{"type": "dense", "units": 5}]}, "algorithm": {"name": "downpour"}}


def arrays(first, stop, labels=5):
    """Return samples that are their numbers, a few of them to test with."""
    x, y = np.arange(first, stop, dtype=np.float32)[:, None], np.arange(first, stop) % labels
    return Arrays((x, y), (x[: first + 1], y[: first + 1]))


@pytest.fixture
def files(tmp_path):
    """Return the paths of three files with 7, 4 and 9 samples."""
    bounds = [0, 7, 11, 20]
    for number, (first, stop) in enumerate(pairwise(bounds)):
        x, y = np.arange(first, stop, dtype=np.float32)[:, None], np.arange(first, stop) % 5
        np.savez(tmp_path / f"site-{number}.npz", **{"train/x": x, "train/y": y, "test/x": x[:2], "test/y": y[:2]})
    return [str(tmp_path / f"site-{number}.npz") for number in range(3)]


def config(path, **keys):
    return from_dict({**CONFIG, "data": {"source": "arrays", "path": path, "private": True, **keys}})


def test_each_file_of_a_list_or_a_pattern_is_a_workers(files):
    found = config(files)
    dataset = build(found).dataset
    assert np.bincount(dataset.owners).tolist() == [7, 4, 9]
    assert (dataset.train.samples, dataset.test.samples, dataset.classes) == (20, 6, 5)
    assert dataset.train.gather(np.array([19, 3, 8, 7])).inputs[:, 0].tolist() == [19, 3, 8, 7]
    pattern = config(files[0].replace("site-0", "site-*"))
    assert pattern.to_dict()["data"]["path"] == files
    assert from_dict(found.to_dict()) == found == pattern


def test_samples_of_several_parts_are_those_of_the_parts():
    dataset = Private([arrays(0, 5), arrays(5, 6), arrays(6, 13)]).open()
    order = np.random.default_rng(0).permutation(13)
    batch = dataset.train.gather(order)
    assert batch.inputs[:, 0].tolist() == order.tolist()
    assert batch.targets.tolist() == (order % 5).tolist()
    assert dataset.train.labels(3, 9).tolist() == [3, 4, 0, 1, 2, 3]
    with pytest.raises(IndexError):
        dataset.train.gather(np.array([13]))
    assert dataset.train.checksum() != Private([arrays(0, 5), arrays(5, 7), arrays(7, 13)]).open().train.checksum()


def test_bags_of_several_parts():
    def bags(*given):
        return Arrays((Ragged.of(given), np.zeros(len(given), int)), (Ragged.of(given), np.zeros(len(given), int)))

    split = Private([bags([1, 2], []), bags([3])]).open().train
    assert split.gather(np.array([2, 0])).inputs.values.tolist() == [3, 1, 2]


def test_samples_that_are_held_out_leave_the_others_their_owners():
    dataset = held_out(Private([arrays(0, 8), arrays(8, 20)]).open(), 0.25, 4, seed=0)
    values = dataset.train.gather(np.arange(15)).inputs[:, 0]
    assert dataset.owners.tolist() == (values >= 8).tolist()


def test_a_validation_split_takes_no_worker_all_samples():
    with pytest.raises(UsageError, match=r"^data.validation: 0.9 takes all training samples of worker 0$"):
        held_out(Private([arrays(0, 9), arrays(9, 10)]).open(), 0.9, 4, seed=0)


class Numbers:
    def __init__(self, *numbers):
        self._numbers = numbers

    def __len__(self):
        return len(self._numbers)

    def __getitem__(self, index):
        return np.float32([self._numbers[index]]), self._numbers[index] % 2


def indexed(*numbers, **options):
    return Indexed(Numbers(*numbers), Numbers(*numbers[:1]), **options)


def two():
    """Return data of two workers, as a factory does."""
    return [indexed(1, 2, 3), indexed(4, 5)]


def test_data_of_the_users_own_for_each_worker():
    factory = from_dict({**CONFIG, "data": {"factory": f"{__name__}:two", "private": True}}).data_source.open()
    for dataset in (Private(two()).open(), factory):
        assert dataset.owners.tolist() == [0, 0, 0, 1, 1]
        assert dataset.train.gather(np.array([4, 0, 3])).inputs[:, 0].tolist() == [5, 1, 4]
        assert dataset.test.gather(np.array([1])).inputs.tolist() == [[4]]


def test_labels_of_the_users_own_data_are_its_targets():
    samples = Numbers(3, 4, 6)
    split = Indexed(samples).open().train
    assert split.labels(0, 3) is None
    for targets, expected in (
        ([1, 0, 0], [0, 0]),
        ([1, 0], None),
        ([0.5, 1, 2], None),
        (["a", "b", "c"], None),
        ([[1], [1, 2], 0], None),
    ):
        samples.targets = targets
        found = Indexed(samples).open().train.labels(1, 3)
        assert (found if found is None else found.tolist()) == expected


class Staged(Numbers):
    def state(self):
        return {}

    def load_state(self, state):
        """Do nothing."""


@pytest.mark.parametrize(("sources", "message"), [
    ([], r"^data: no sources, expected one for each worker$"),
    ([arrays(0, 5), 3], r"^data\[1\]: expected a Dataset or a source, found "),
    ([arrays(0, 5), Arrays((np.zeros((3, 2)), np.zeros(3, int)), (np.zeros((3, 2)), np.zeros(3, int)))],
     r"^data of worker 1: input_shape \(2,\), expected \(1,\) as that of worker 0$"),
    ([indexed(1), indexed(2, classes=2)], r"^data\[1\]: Indexed.classes differs from that of data\[0\]"),
    ([indexed(1), Indexed(Numbers(2))], r"^data\[1\]: Indexed.test is given for some, expected it for all or none$"),
    ([indexed(1), indexed(2, sampler=[0])], r"^data\[1\]: its samples have a sampler, expected none in data that"),
    ([Indexed(Staged(1)), Indexed(Staged(2))], r"^data\[0\]: its samples have a state, expected none in data that"),
])  # fmt: skip
def test_sources_that_do_not_fit_together(sources, message):
    with pytest.raises(UsageError, match=message):
        Private(sources).open()


@pytest.mark.parametrize(("data", "message"), [
    ({"source": "digits", "private": True}, "^data.private: true, expected data.path with the path of each worker's"),
    ({"source": "arrays", "path": ["a.npz", 3], "private": True}, r"^data.path: expected str or list of str, found \["),
    ({"source": "arrays", "path": [], "private": True}, "^data.path: no files, expected at least one file$"),
    ({"source": "digits", "split": "label:0"}, "^data.split: 'label:0', expected 'label:' and a number of labels, or"),
    ({"source": "arrays", "path": ["a"], "private": True, "split": "label:1"}, "^data.split: 'label:1', but data.priv"),
])  # fmt: skip
def test_keys_that_do_not_fit_together(data, message):
    with pytest.raises(UsageError, match=message):
        from_dict({**CONFIG, "data": data})


def test_what_is_no_source_in_a_list_of_sources_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"^data\[1\]: expected a Dataset or a source, found an int$"):
        mpidl.train(mpidl.Network([mpidl.Dense(1)], (1,)), [indexed(1, 2), 3], dir=tmp_path)


def test_a_list_of_something_else_is_refused_as_anything_else_is(tmp_path):
    with pytest.raises(UsageError, match=r"^data: expected a Dataset or a source"):
        mpidl.train(mpidl.Network([mpidl.Dense(1)], (1,)), [np.zeros(3)], dir=tmp_path)


SOURCE = """
import numpy as np
from mpidl.data import Arrays, Digits, Indexed

class Ones:
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return np.ones(3), index % 2

def indexed():
    return Indexed(Ones(), Ones(), classes=2)

def arrays():
    x, y = np.zeros((6, 3)), np.arange(6) % 2
    return Arrays((x, y), (x, y))

def source():
    return Digits()

def dataset():
    return Digits().open()

def nothing():
    return None

def raises():
    raise OSError("no tape")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_factories.py").write_text(SOURCE)
    yield "own_factories"
    sys.modules.pop("own_factories", None)


@pytest.mark.parametrize(
    ("function", "found"), [("indexed", (3,)), ("arrays", (3,)), ("source", (8, 8)), ("dataset", (8, 8))]
)
def test_a_function_returns_data(module, function, found):
    values = {"data": {"factory": f"{module}:{function}", "batch": 2}, "model": {"factory": "a:b"}}
    config = from_dict(values)
    assert config.data_source == Factory(f"{module}:{function}")
    assert config.data_source.open().input_shape == found
    again = from_dict(config.to_dict())
    assert (again.data_source, again.data.batch) == (config.data_source, 2)


def test_a_command_line_takes_a_factory_for_the_source_of_a_file(tmp_path):
    (tmp_path / "job.toml").write_text('data.source = "digits"\nmodel.factory = "a:b"\n')
    config = load(tmp_path / "job.toml", ["data.factory=c:d", "data.workers=3"])
    assert config.data_source == Factory("c:d", workers=3)


def test_workers_of_the_configuration(module):
    train = Factory(f"{module}:indexed", workers=2).open().train
    assert (train.lookahead, Factory(f"{module}:indexed").open().train.lookahead) == (4, 2)


@pytest.mark.parametrize(
    ("function", "workers", "line"),
    [
        ("nothing", None, " returned None, expected a Dataset or a source, such as mpidl.Indexed(train, test)"),
        ("raises", None, " raised OSError: no tape (MPIDL_DEBUG=1 shows its traceback)"),
        ("absent", None, ": found nothing of that name, expected a function of no arguments"),
    ],
)
def test_what_is_wrong_is_one_line(module, function, workers, line):
    with pytest.raises(UsageError) as error:
        Factory(f"{module}:{function}", workers).open()
    assert str(error.value) == f"data.factory: {module}:{function}{line}"


def test_workers_are_an_indexeds(module):
    with pytest.raises(UsageError, match=r"^data.workers: 2, but \w+:arrays returned an Arrays: only"):
        Factory(f"{module}:arrays", 2).open()
