"""Samples that are kept in the memory of a node, or of several together, are those of the files, read once."""

import h5py
import numpy as np
import pytest
from data_files import TEST, TRAIN, fails, source_of
from hypothesis import given
from hypothesis import strategies as st

import mpidl
from mpidl.config import from_dict
from mpidl.data import (
    ArraySplit,
    Augmentation,
    CachedSplit,
    Dataset,
    Hdf5,
    Normalisation,
    Portions,
    Synthetic,
    augmented,
    in_memory,
    normalised,
)
from mpidl.data.cached import AHEAD, part
from mpidl.data.images import Idx, IdxFile
from mpidl.job.build import build

INDICES = np.array([36, 0, 7, 7, 12])


def dataset_of(kind, arrays, tmp_path, write_hdf5, write_idx):
    if kind == "hdf5":
        return Hdf5(str(write_hdf5(arrays, chunks=True, compression="gzip"))).open()
    if kind == "doubles":
        doubles = {key: array / 3 if key.endswith("x") else array for key, array in arrays.items()}
        return Hdf5(str(write_hdf5(doubles))).open()
    if kind == "idx":
        return Idx(str(write_idx(arrays, zipped=True))).open()
    if kind in ("npz", "npy"):
        types = {"npz": "u1", "npy": ">f4"}
        made = {key: array.astype(types[kind]) if key.endswith("x") else array for key, array in arrays.items()}
        return source_of(kind, tmp_path, made).open()
    return Synthetic(samples=TRAIN, test_samples=TEST, shape=(5, 3)).open()


@pytest.mark.parametrize("form", ["as it is", "integers", "double", "both"])
@pytest.mark.parametrize("kind", ["hdf5", "doubles", "idx", "npz", "npy", "synthetic"])
def test_batches_and_checksums_are_those_of_the_source(arrays, tmp_path, write_hdf5, write_idx, kind, form):
    given = dataset_of(kind, arrays, tmp_path, write_hdf5, write_idx)
    found = in_memory(given)
    if form in ("integers", "both"):
        given, found = given.as_integers(), found.as_integers()
    if form in ("double", "both"):
        given, found = given.as_double(), found.as_double()
    assert found.input_shape == given.input_shape
    for mine, its in ((found.train, given.train), (found.test, given.test)):
        assert isinstance(mine, CachedSplit)
        assert (mine.samples, mine.contiguous) == (its.samples, its.contiguous)
        for split in (mine, mine.copy()):
            for own, expected in zip(split.gather(INDICES % 11), its.gather(INDICES % 11), strict=True):
                if isinstance(expected, np.ndarray):
                    assert own.dtype == expected.dtype
                    assert own.tobytes() == expected.tobytes()
                else:
                    assert own == expected
        assert mine.checksum() == its.checksum()
    with pytest.raises(IndexError):
        found.train.gather(np.array([TRAIN]))


@pytest.mark.parametrize("chunk", [1, 5, 8, 64])
def test_each_chunk_of_a_file_is_read_once(arrays, write_hdf5, monkeypatch, chunk):
    read, original = [], h5py.Dataset.read_direct

    def note(self, memory, block, place):
        if self.name.endswith("/x") and block.stop - block.start > 1:
            read.extend(range(block.start, block.stop))
            assert block.start % min(chunk, TRAIN) == 0
        original(self, memory, block, place)

    monkeypatch.setattr(h5py.Dataset, "read_direct", note)
    monkeypatch.setattr("mpidl.data.cached.BLOCK_BYTES", 200)
    split = in_memory(Hdf5(str(write_chunked(write_hdf5, arrays, chunk))).open()).train
    assert split.cached.chunk == min(chunk, TRAIN)
    for _ in range(3):
        split.gather(INDICES)
    split.copy().load()
    assert sorted(read) == list(range(TRAIN))


def test_what_is_let_go_of_is_read_again(arrays, write_idx, monkeypatch):
    read, original = [], IdxFile.read

    def note(self):
        read.append(self.path.name)
        return original(self)

    monkeypatch.setattr(IdxFile, "read", note)
    split = in_memory(Idx(str(write_idx(arrays, zipped=False))).open()).train
    read.clear()
    first = split.gather(INDICES).inputs.copy()
    split.gather(INDICES[:2])
    assert read == ["train-images-idx3-ubyte"]
    split.cached.release()
    assert np.array_equal(split.gather(INDICES).inputs, first)
    assert read == ["train-images-idx3-ubyte"] * 2


def sections(path, **data):
    return {
        "data": {"source": "hdf5", "path": str(path), "batch": 4, "portion": 8, **data},
        "model": {"layer": [{"type": "dense", "units": 10}]},
        "run": {"epochs": 3},
    }


def test_a_run_is_the_same_wherever_its_samples_are(arrays, write_hdf5, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, trained = write_hdf5(arrays), {}
    for keep in ("files", "memory"):
        for validation in ({}, {"validation": 0.2}):
            config = sections(path, keep=keep, **validation)
            config["run"]["name"] = f"{keep}-{len(validation)}"
            summary = mpidl.train(config=config, device="cpu")
            trained[keep, len(validation)] = mpidl.load(summary["run_dir"]).parameters.tobytes()
    assert trained["files", 0] == trained["memory", 0]
    assert trained["files", 1] == trained["memory", 1]
    assert trained["files", 0] != trained["files", 1]


@pytest.mark.parametrize("keep", ["files", "memory"])
@pytest.mark.parametrize(("shuffle", "blocks"), [(None, True), ("portion", True), ("samples", False)])
def test_the_order_is_by_samples_or_by_portions(arrays, write_hdf5, shuffle, blocks, keep):
    given = {} if shuffle is None else {"shuffle": shuffle}
    job = build(from_dict(sections(write_hdf5(arrays), keep=keep, **given)))
    expected = Portions(TRAIN, 4, 8, 0, contiguous=blocks)
    for number in range(2 * expected.per_epoch):
        assert np.array_equal(job.portions.indices(number), expected.indices(number))


def test_portions_of_any_source_may_be_neighbours():
    config = {
        "data": {"source": "digits", "batch": 8, "portion": 32, "shuffle": "portion"},
        "model": {"layer": [{"type": "dense", "units": 10}]},
    }
    portions = build(from_dict(config)).portions
    for number in range(portions.per_epoch):
        found = np.sort(portions.indices(number))
        assert np.array_equal(found, np.arange(found[0], found[0] + len(found)))


@pytest.mark.parametrize(
    ("chunk", "given", "note"),
    [
        (8, {}, None),
        (4, {}, None),
        (5, {}, "data.portion: 8, but the files are read in chunks of 5 samples, some of which span two portions: "
                "use a multiple of 5"),
        (5, {"keep": "memory"}, None),
        (5, {"shuffle": "samples"}, "data.shuffle: 'samples', but the files are read in chunks of 5: use 'portion'"),
    ],
)  # fmt: skip
def test_portions_that_share_chunks_are_said(arrays, write_hdf5, chunk, given, note):
    job = build(from_dict(sections(write_chunked(write_hdf5, arrays, chunk), **given)))
    assert job.notes == ([] if note is None else [note])


def write_chunked(write_hdf5, arrays, chunk):
    """Write arrays into a file whose inputs are in chunks of `chunk` samples."""
    path = write_hdf5({key: array for key, array in arrays.items() if key.endswith("y")})
    with h5py.File(path, "a") as file:
        for key in ("train/x", "test/x"):
            chunks = (min(chunk, len(arrays[key])), 5, 3)
            file.create_dataset(key, data=arrays[key], chunks=chunks, compression="gzip")
    return path


class Ragged:
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return np.zeros(index + 1, np.float32), 0


def test_samples_without_one_form_can_not_be_kept():
    data = mpidl.Indexed(Ragged(), Ragged(), collate=lambda samples: (samples, None, 1.0)).open()
    split = in_memory(data).train
    fails(split.load, "^data.keep: 'memory' needs batches of arrays without weights, expected 'files'$")


def test_a_run_goes_on_wherever_its_samples_are(arrays, write_hdf5, tmp_path, monkeypatch):
    """The order of the samples and their checksums are the same."""
    monkeypatch.chdir(tmp_path)
    path = write_hdf5(arrays)
    mpidl.train(config=sections(path), device="cpu", epochs=1)
    summary = mpidl.train(config=sections(path, keep="memory"), device="cpu", epochs=2, resume=True)
    assert summary["samples"] == 2 * TRAIN
    for keys, option, line in (
        (
            {"shuffle": "samples"},
            {},
            "^data.shuffle: samples, but .* was saved with none, and its position in the data depends on that",
        ),
        (
            {},
            {"drop_last": True},
            "^data.drop_last: True, but .* was saved with False, and its position in the data depends on that",
        ),
    ):
        again = {"config": sections(path, **keys), "device": "cpu", "epochs": 3, "resume": True} | option
        fails(lambda again=again: mpidl.train(**again), line)


SAMPLES = 37


@given(samples=st.integers(1, 500), chunk=st.integers(1, 64), count=st.integers(1, 40))
def test_parts_are_whole_chunks_as_equal_as_possible(samples, chunk, count):
    parts = [part(samples, chunk, number, count) for number in range(count)]
    assert [row for each in parts for row in range(*each)] == list(range(samples))
    assert all(each.start % chunk == 0 or each.start == samples for each in parts)
    sizes = [-(-each.size // chunk) for each in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


class Pieces:
    """Stands in for the memory of several nodes: a batch's samples come in another order, in memory used again."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets
        self.asked, self.under_way = [], []

    def ask(self, indices):
        self.asked.append(indices.tolist())
        self.under_way.append(self)
        order = np.random.default_rng(len(self.asked)).permutation(len(indices))
        store = self

        class Coming:
            def result(self):
                rows = np.empty_like(order)
                rows[order] = np.arange(len(order))
                return store.inputs[indices[order]], store.targets[indices[order]], rows

            def release(self):
                store.under_way.pop()

        return Coming()


@pytest.fixture
def dataset():
    random = np.random.default_rng(3)
    inputs, targets = random.integers(0, 256, (SAMPLES, 5, 3), np.uint8), random.integers(0, 9, SAMPLES)
    split = ArraySplit(inputs, targets)
    return Dataset("bytes", (5, 3), 9, split, split)


def distributed(dataset):
    """Return the dataset with its training samples in pieces, and these."""
    found = in_memory(dataset, distributed=True)
    assert isinstance(found.train, CachedSplit)
    reader = dataset.train.as_integers().gather(np.arange(SAMPLES))
    pieces = Pieces(reader.inputs.copy(), reader.targets.copy())
    found.train.cached.use_store(pieces)
    return found, pieces


def changed(dataset):
    return normalised(augmented(dataset, Augmentation(reflect=True, noise=0.1), 5), Normalisation(0.3, 0.7))


@pytest.mark.parametrize("change", [lambda data: data, changed, lambda data: data.as_integers()])
@given(batches=st.lists(st.lists(st.integers(0, SAMPLES - 1), min_size=1, max_size=9), min_size=1, max_size=6))
def test_batches_are_those_of_the_source(change, batches):
    random = np.random.default_rng(3)
    split = ArraySplit(random.integers(0, 256, (SAMPLES, 5, 3), np.uint8), random.integers(0, 9, SAMPLES))
    data = Dataset("bytes", (5, 3), 9, split, split)
    found, pieces = distributed(data)
    mine, its = change(found).train, change(data).train
    parts = [np.array(each) for each in batches]
    for own, indices in zip(mine.in_turn(parts), parts, strict=True):
        expected = its.gather(indices)
        assert own.inputs.dtype == expected.inputs.dtype
        assert own.inputs.tobytes() == expected.inputs.tobytes()
        assert own.targets.tobytes() == expected.targets.tobytes()
    assert pieces.asked == batches
    assert pieces.under_way == []


def test_each_batch_is_asked_for_once_and_ahead(dataset):
    found, pieces = distributed(dataset)
    split = found.train
    assert split.lookahead == split.copy().lookahead == split.as_integers().lookahead == AHEAD
    assert found.as_double().train.lookahead == AHEAD
    parts = [np.arange(start, start + 4) for start in range(0, 20, 4)]
    for number, _ in enumerate(split.in_turn(parts)):
        assert len(pieces.asked) == min(len(parts), number + 1 + AHEAD)
    split.gather(parts[0])
    assert len(pieces.asked) == len(parts) + 1


def test_the_checksum_is_that_of_the_source(dataset):
    assert distributed(dataset)[0].train.checksum() == dataset.train.checksum()


def test_a_process_alone_keeps_all_samples(dataset):
    split = in_memory(dataset, distributed=True).train
    indices = np.array([3, 36, 3])
    split.prepare(indices)
    assert split.gather(indices).inputs.tobytes() == dataset.train.gather(indices).inputs.tobytes()


def test_other_ways_to_keep_are_one_line():
    sections = {"data": {"source": "digits", "keep": "spread"}, "model": {"layer": [{"type": "dense", "units": 10}]}}
    fails(lambda: from_dict(sections), "^data.keep: .*distributed")
