"""Samples dealt out unevenly by their labels, and files that are sorted by class."""

import numpy as np
import pytest
from data_files import hdf5_file
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mpidl.config import from_dict
from mpidl.data.dataset import ArraySplit
from mpidl.data.labels import Deal, portions_are_alike
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.placed import place
from rows import in_turn


@given(
    text=st.sampled_from(["label:1", "label:2", "label:5", "dirichlet:0.001", "dirichlet:0.3", "dirichlet:1e300"]),
    labels=st.lists(st.integers(-3, 9), min_size=40, max_size=90), replicas=st.integers(1, 8), seed=st.integers(0, 9),
)  # fmt: skip
def test_every_sample_has_one_owner_and_no_owner_is_without(text, labels, replicas, seed):
    labels = np.array(labels)
    shares = Deal.parse(text).shares(labels, replicas, seed)
    assert np.sort(np.concatenate(shares)).tolist() == list(range(len(labels)))
    assert len(shares) == replicas
    assert min(map(len, shares)) >= 1
    again = Deal.parse(text).shares(labels, replicas, seed)
    assert all(np.array_equal(*each) for each in zip(shares, again, strict=True))


def test_pieces_of_single_labels_give_each_replica_two_of_them():
    labels = np.arange(1000) % 10
    shares = Deal.parse("label:2").shares(labels, 10, seed=1)
    assert [len(share) for share in shares] == [100] * 10
    assert {len(np.unique(labels[share])) for share in shares} <= {1, 2}
    others = Deal.parse("label:2").shares(labels, 10, seed=2)
    assert any(not np.array_equal(*each) for each in zip(shares, others, strict=True))


def test_a_small_concentration_is_uneven_and_a_large_one_is_not():
    labels = np.arange(4000) % 10
    most = {}
    for text in ("dirichlet:0.05", "dirichlet:1000"):
        shares = Deal.parse(text).shares(labels, 4, seed=0)
        most[text] = np.mean([np.bincount(labels[share]).max() / len(share) for share in shares])
    assert most["dirichlet:0.05"] > 0.3
    assert most["dirichlet:1000"] < 0.12


@pytest.mark.parametrize("concentration", [0.4, 0.03, 0.001])
def test_shares_are_dirichlets_where_many_owners_would_have_no_sample(concentration):
    owners, classes, each, seeds = 100, 10, 1000, 6
    labels, largest = np.repeat(np.arange(classes), each), []
    for seed in range(seeds):
        of_owners = [
            np.bincount(labels[own], minlength=classes) for own in shares_of(labels, owners, concentration, seed)
        ]
        largest += (np.max(of_owners, axis=0) / each).tolist()
    drawn = np.random.default_rng(1).dirichlet(np.full(owners, concentration), 4000).max(axis=1)
    # Sampling errors, and one sample for each owner that would have none.
    tolerance = 4 * drawn.std() / len(largest) ** 0.5 + owners / labels.size
    assert np.mean(largest) == pytest.approx(drawn.mean(), abs=tolerance)


def shares_of(labels, owners, concentration, seed):
    return Deal.parse(f"dirichlet:{concentration}").shares(labels, owners, seed)


def test_owners_that_would_have_no_sample_get_one():
    shares = Deal.parse("dirichlet:1e-9").shares(np.zeros(500, int), 40, seed=0)
    assert sorted(map(len, shares)) == [1] * 39 + [461]


@pytest.mark.parametrize(("samples", "sizes"), [(100, [33, 34, 33]), (101, [34, 33, 34]), (2000, [667, 666, 667])])
@pytest.mark.parametrize("concentration", ["1e9", "1e308"])
def test_sizes_are_the_nearest_to_the_shares(samples, sizes, concentration):
    shares = Deal.parse(f"dirichlet:{concentration}").shares(np.zeros(samples, int), 3, seed=0)
    assert [len(share) for share in shares] == sizes


@pytest.mark.parametrize("text", ["label:1", "dirichlet:1e9"])
def test_samples_of_a_label_are_dealt_at_random(text):
    for share in Deal.parse(text).shares(np.zeros(2000, int), 2, seed=0):
        assert 0.4 < np.mean(share < 1000) < 0.6
        assert share.tolist() == sorted(share.tolist())


@pytest.mark.parametrize(
    "text",
    ["label", "label:0", "label:1.5", "dirichlet:0", "dirichlet:-1", "dirichlet:inf", "dirichlet:nan", "iid:2", ""],
)
def test_what_is_no_deal(text):
    with pytest.raises(UsageError, match="expected 'label:' and a number of labels, or 'dirichlet:' and one above 0"):
        Deal.parse(text)


def test_too_few_samples():
    with pytest.raises(UsageError, match=r"^7 training samples, expected at least 8 for 4 replicas$"):
        Deal.parse("label:2").shares(np.zeros(7, int), 4, 0)


LINE = (
    "data.shuffle: 'portion', but the samples of a portion are of few classes, as in a file sorted by class: "
    "shuffle the file, or use 'samples'"
)


def labels(classes: int, samples: int, first: float | None = None) -> NDArray[np.int64]:
    """Return random labels, of which a share of `first` is the first class; by default all are equally frequent."""
    share = None if first is None else [first, *[(1 - first) / (classes - 1)] * (classes - 1)]
    return np.random.default_rng(samples).choice(classes, samples, p=share)


def alike(targets: NDArray[np.generic], portion: int) -> bool:
    return portions_are_alike(ArraySplit(np.zeros((len(targets), 1), np.uint8), targets), portion)


@pytest.mark.parametrize(
    ("targets", "portion"),
    [
        (labels(10, 60_000), 512),
        (labels(10, 60_000), 12_800),
        (labels(1000, 100_000), 640),
        (labels(2, 1000), 100),
        (labels(2, 9000, first=0.95), 512),
        (labels(10, 1797), 16),
    ],
)
def test_sorted_samples_are_noticed(targets: NDArray[np.int64], portion: int) -> None:
    assert alike(np.sort(targets), portion)
    assert alike(np.sort(targets)[::-1], portion)
    assert alike(np.concatenate([np.sort(targets[::2]), np.sort(targets[1::2])]), portion)  # two sorted files


@pytest.mark.parametrize(
    ("portion", "classes", "first"),
    in_turn([1, 2, 8, 16, 100, 512], [(2, 0.9), (10, None), (1000, 0.999), (50_000, 0.9), (2, 0.999)], each=3),
)
def test_shuffled_samples_are_never_alike(portion: int, classes: int, first: float | None) -> None:
    for samples in (32, 33, 100, 1000, 9000):
        assert not alike(labels(classes, samples, first), portion)


def test_samples_in_turn_of_one_class_or_without_classes_are_not_alike() -> None:
    assert not alike(np.arange(9000) % 10, 512)
    assert not alike(np.zeros(9000, np.int64), 512)
    assert not alike(np.sort(np.random.default_rng(0).random((9000, 1)), axis=0), 512)


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ({}, [LINE]),
        ({"validation": 0.2, "keep": "memory"}, [LINE]),
        ({"keep": "distributed"}, [LINE]),
        ({"shuffle": "samples"}, []),
    ],
)
def test_a_sorted_file_is_a_line(tmp_path, given, lines) -> None:
    write(tmp_path / "data.h5", np.sort(labels(10, 1280)).astype(np.uint8))
    assert list(notes(tmp_path, given)) == lines


@pytest.mark.parametrize("targets", [labels(10, 1280), np.sort(labels(10, 1280))[:, None].astype(np.float32)])
def test_a_shuffled_file_and_numbers_are_none(tmp_path, targets) -> None:
    write(tmp_path / "data.h5", targets)
    assert list(notes(tmp_path, {})) == []


@pytest.mark.parametrize(("shuffle", "lines"), [("portion", [LINE]), (None, [])])
def test_arrays_are_alike_only_if_portions_are_of_neighbours(tmp_path, shuffle, lines) -> None:
    np.savez(tmp_path / "data.npz", **columns(np.sort(labels(10, 1280))))
    given = {"source": "arrays", "path": str(tmp_path / "data.npz")} | ({"shuffle": shuffle} if shuffle else {})
    assert list(notes(tmp_path, given)) == lines


OWN = LINE.replace("a portion are", "a portion of worker {} are")


@pytest.mark.parametrize(
    ("of_workers", "lines"),
    [
        ([labels(10, 1280), labels(10, 1280)], []),
        ([np.full(1280, 3), np.full(1280, 9)], []),
        ([labels(2, 1280), labels(2, 1280) + 8], []),
        ([labels(10, 1280), np.sort(labels(10, 1280))], [OWN.format(1)]),
    ],
)
@pytest.mark.parametrize("given", [{}, {"validation": 0.2}])
def test_files_that_workers_keep_apart_are_each_looked_at_alone(tmp_path, of_workers, lines, given) -> None:
    paths = [tmp_path / f"{number}.h5" for number in range(len(of_workers))]
    for path, targets in zip(paths, of_workers, strict=True):
        write(path, targets)
    data = {"path": [str(path) for path in paths], "private": True} | given
    assert own_notes(tmp_path, data) == lines

    assert own_notes(tmp_path, data | {"shuffle": "samples"}) == []


@pytest.mark.parametrize(
    ("split", "targets", "lines"),
    [
        ("label:1", np.sort(np.arange(1280) % 2) * 9, []),
        ("label:1", np.sort(np.arange(1280) % 4) * 3, [OWN.format(0)]),
        ("label:2", labels(10, 1280), []),
        ("dirichlet:100", np.sort(labels(10, 1280)), [OWN.format(0)]),
    ],
)
def test_dealt_samples_are_looked_at_as_each_worker_has_them(tmp_path, split, targets, lines) -> None:
    write(tmp_path / "data.h5", targets)
    assert own_notes(tmp_path, {"split": split}) == lines


def own_notes(directory, given) -> list[str]:
    """Return the lines about a job of two workers with data of their own, by an algorithm without lines about these."""
    data = {"source": "hdf5", "path": str(directory / "data.h5"), "batch": 8} | given
    sections = {"data": data, "model": {"layer": [{"type": "dense", "units": 10}]}, "algorithm": {"name": "sync"}}
    return place(build(from_dict(sections)), 2).notes


def columns(targets: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    inputs = np.zeros((len(targets), 3), np.float32)
    return {"train/x": inputs, "train/y": targets, "test/x": inputs[:20], "test/y": targets[:20]}


def write(path, targets: NDArray[np.generic]) -> None:
    hdf5_file(path, columns(targets))


def notes(directory, given) -> list[str]:
    """Return the lines about a job with the data of a file."""
    data = {"source": "hdf5", "path": str(directory / "data.h5"), "batch": 8} | given
    return build(from_dict({"data": data, "model": {"layer": [{"type": "dense", "units": 10}]}})).notes


def test_several_labels_of_a_sample_are_no_class():
    labels = np.repeat(np.arange(4), 25)
    assert portions_are_alike(ArraySplit(np.zeros((100, 3)), labels), 25)
    assert not portions_are_alike(ArraySplit(np.zeros((100, 3)), np.stack([labels, labels], 1)), 25)
