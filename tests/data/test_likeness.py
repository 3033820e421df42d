"""Files that are sorted by class, whose portions train on few classes at a time, are named; shuffled ones never are."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from mpidl.config import from_dict
from mpidl.data.dataset import ArraySplit
from mpidl.data.labels import portions_are_alike
from mpidl.job.build import build
from mpidl.job.placed import place
from rows import in_turn

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
    with h5py.File(path, "w") as file:
        for key, array in columns(targets).items():
            file[key] = array


def notes(directory, given) -> list[str]:
    """Return the lines about a job with the data of a file."""
    data = {"source": "hdf5", "path": str(directory / "data.h5"), "batch": 8} | given
    return build(from_dict({"data": data, "model": {"layer": [{"type": "dense", "units": 10}]}})).notes


def test_several_labels_of_a_sample_are_no_class():
    labels = np.repeat(np.arange(4), 25)
    assert portions_are_alike(ArraySplit(np.zeros((100, 3)), labels), 25)
    assert not portions_are_alike(ArraySplit(np.zeros((100, 3)), np.stack([labels, labels], 1)), 25)
