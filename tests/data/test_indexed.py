"""Datasets of the user's own: their batches, and what is wrong with them."""

import multiprocessing
import os
import re
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
from own_data import (
    Log,
    Noise,
    Numbers,
    Opened,
    Rows,
    Tokens,
    as_batch,
    as_pair,
    elements,
    join,
    masked,
    not_a_batch,
    nothing,
    words,
)

from mpidl.data import Augmentation, Indexed, Normalisation, augmented, normalised
from mpidl.data.collation import collate
from mpidl.data.dataset import opened
from mpidl.errors import MpidlError, UsageError

WORKERS = [0, 2]


def split(train, workers=0, **keys):
    return Indexed(train, Numbers(4), workers=workers, **keys).open().train


# Batches.


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_are_made_of_the_samples_asked_for(workers):
    dataset = Indexed(Numbers(), Numbers(4), workers=workers).open()
    assert (dataset.input_shape, dataset.classes, dataset.train.samples) == ((3,), None, 20)
    assert opened(dataset) is dataset
    parts = [np.array(part) for part in ([3, 1], [19], [0, 5, 7], [2, 2])]
    dataset.train.prepare(np.array([9, 9]))  # which nobody asks for
    for part, batch in zip(parts, dataset.train.in_turn(parts), strict=True):
        assert batch.inputs[:, 0].tolist() == part.tolist()
        assert batch.targets.tolist() == (part % 2).tolist()
        assert (batch.total, batch.inputs.dtype, batch.inputs.flags.writeable) == (len(part), np.float32, True)
    assert dataset.test.gather(np.array([3])).targets.tolist() == [1]
    with pytest.raises(IndexError, match=r"outside \[0, 20\)"):
        dataset.train.gather(np.array([20]))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("function", [join, as_batch])
def test_a_collate_function_makes_batches_of_samples_of_unequal_size(workers, function):
    train = split(Rows(), workers, collate=function)
    (values, lengths), targets, _, weight = train.gather(np.array([4, 0, 2]))
    assert (values.size, lengths.tolist(), targets, weight) == (9, [5, 1, 3], None, 9.0)
    assert train.checksum() == split(Rows(), collate=function).checksum()


def test_a_weight_function():
    batch = split(Numbers(), weight=elements).gather(np.arange(4))
    assert batch.total == 12
    assert batch.shares([(np.zeros(9), None), (np.zeros(3), None)], [2, 2]) == [0.75, 0.25]


def test_normalised_and_augmented():
    dataset = Indexed(Numbers(), Numbers(4)).open()
    found = normalised(dataset, Normalisation(mean=1.0, std=2.0)).train.gather(np.array([5, 1]))
    assert found.inputs[:, 0].tolist() == [2, 0]
    with pytest.raises(UsageError, match=r"^data.augment: inputs of shape \(3,\), expected images"):
        augmented(dataset, Augmentation(reflect=True), 0)
    ragged = Indexed(Rows(), Rows(), collate=join).open()
    assert ragged.input_shape is None
    with pytest.raises(UsageError, match=r"^data.normalise: samples of several shapes"):
        normalised(ragged, Normalisation(mean=1.0))
    with pytest.raises(UsageError, match=r"^data.augment: inputs of shape unknown, expected images"):
        augmented(ragged, Augmentation(reflect=True), 0)


def test_random_samples_have_a_checksum_of_their_number_and_are_the_same_in_all_workers():
    assert split(Noise()).checksum() == split(Noise()).checksum() != split(Noise(21)).checksum()
    one, three = split(Noise(), 1), split(Noise(), 3)
    indices = np.array([3, 1, 4])
    first = one.gather(indices, 2).inputs
    assert np.array_equal(first, three.gather(indices, 2).inputs)
    assert not np.array_equal(first, one.gather(indices, 3).inputs)
    assert one.checksum() != split(Noise()).checksum()


# What is wrong.


def raises(line, action, kind=MpidlError):
    with pytest.raises(kind) as error:
        action()
    assert str(error.value) == line


@pytest.mark.parametrize("function", [None, as_pair])
@pytest.mark.parametrize(
    ("sample", "found"),
    [
        (None, "is None: "),
        ((np.zeros(3), None), "has None: "),
        ((np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]), 1), "has a masked value, expected finite numbers"),
        ((np.zeros(3), np.ma.masked), "has a masked value, expected finite numbers"),
    ],
)
def test_a_sample_that_is_none_or_masked_is_named(function, sample, found):
    train = split(Numbers(broken=sample), collate=function)
    assert train.gather(np.array([6])).inputs[0, 0] == 6
    with pytest.raises(MpidlError, match=rf"^data: training sample 7 {found}") as error:
        train.gather(np.array([1, 7, 2]))
    assert "\n" not in str(error.value)


DEBUG = "(MPIDL_DEBUG=1 shows its traceback)"


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sample_that_raises_is_one_line(workers):
    train = split(Numbers(broken="raises"), workers)
    train.prepare(np.array([1, 7, 2]))
    line = f"data: training sample 7 raised KeyError: 'no such event' {DEBUG}"
    raises(line, lambda: train.gather(np.array([1, 7, 2])))
    assert train.gather(np.array([6])).inputs[0, 0] == 6


def test_a_worker_that_dies_is_one_line():
    train = split(Numbers(broken="dies", seconds=0.01), 2)
    for part in ([1, 7, 2], [3, 4, 5]):
        train.prepare(np.array(part))
    line = "data: worker process 0 was killed by signal 9 at training sample 7"
    raises(line, lambda: train.gather(np.array([1, 7, 2])))


BATCH = "(inputs, targets), (inputs, targets, weight), a dict with labels or a mpidl.Batch"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"collate": not_a_batch}, f"collate returned a dict, expected {BATCH}"),
        ({"collate": masked}, "collate returned a masked value, expected finite numbers"),
        ({"collate": len}, f"collate returned an int, expected {BATCH}"),
        ({"collate": join, "weight": nothing}, "weight 0, expected a number above 0"),
        ({"collate": join, "weight": words}, "weight 'many', expected a number above 0"),
        ({"collate": elements}, f"collate raised TypeError: .*{re.escape(DEBUG)}"),
    ],
)
def test_batches_that_are_none_are_one_line(keys, line):
    train = split(Rows(), **keys)
    line = line if "raised" in line else re.escape(line)
    with pytest.raises(MpidlError, match=rf"^data: training samples 2, \.\.\. \(2\): {line}$"):
        train.gather(np.array([2, 3]))


def test_labels_of_other_classes_are_one_line():
    train = split(Numbers(), classes=1)
    raises("data: training samples 2, ... (2): label 1, expected 0 to 0", lambda: train.gather(np.array([2, 3])))


def test_what_is_no_dataset_is_one_line():
    expected = "expected one with __len__ and __getitem__"
    raises(f"data: test: found a generator, {expected}", Indexed(Numbers(), (i for i in [])).open, UsageError)
    found = "a sample is a ndarray, expected (input, target), a dict with labels, or collate=..."
    raises(
        f"data: training samples 0, ... (1): stacking raised ValueError: {found} {DEBUG}",
        Indexed(Rows(), Rows()).open,
        UsageError,
    )
    raises("Dataset.train: no samples, expected at least one", Indexed(Numbers(0), Numbers()).open, UsageError)
    raises("Indexed.workers: expected int >= 0, found -1", lambda: Indexed(1, 2, workers=-1), UsageError)
    raises("Indexed.collate: expected a function, found 3", lambda: Indexed(1, 2, collate=3), UsageError)


def test_a_dataset_that_can_not_be_sent_to_workers_is_one_line():
    with pytest.raises(
        UsageError, match=r"^data.workers: the dataset can't be sent to worker processes: pickle raised "
    ):
        split(Rows(), 2, collate=lambda samples: samples)


@pytest.mark.parametrize("collate", [None, as_pair])
def test_workers_get_a_dataset_that_opens_its_file_when_it_is_first_read(tmp_path, collate):
    """Also a second time, such as in another training of the script."""
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = np.arange(12.0).reshape(6, 2)
    data = Indexed(Opened(tmp_path / "data.h5"), workers=1, collate=collate)
    for _ in range(2):
        train = data.open().train
        assert (train.samples, train.labels(2, 5).tolist()) == (6, [0, 1, 0])
        assert np.array_equal(train.gather(np.array([4, 1])).inputs, [[8, 9], [2, 3]])


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("key", ["labels", "label", "label_ids"])
def test_samples_may_be_mappings_with_labels(workers, key):
    batch = split(Tokens(key), workers).gather(np.array([4, 2]))
    assert np.array_equal(batch.targets, [1, 2])
    assert {name: each.tolist() for name, each in batch.inputs.items()} == {
        "input_ids": [[4, 7], [2, 7]],
        "attention_mask": [[1, 0], [1, 0]],
    }


def test_collate_functions_may_return_a_mapping_with_labels():
    batch = split(Tokens(), collate=lambda samples: collate(samples) | {"more": 1}).gather(np.array([4, 2]))
    assert (batch.targets.tolist(), list(batch.inputs)) == ([1, 2], ["input_ids", "attention_mask", "more"])
    both = split(Tokens("label"), collate=lambda samples: collate(samples) | {"labels": 1})
    line = f"data: training samples 4, ... (1): collate returned a dict, expected {BATCH}"
    raises(line, lambda: both.gather(np.array([4])))


# Workers.


def children(pid):
    """Return the processes that descend from a process."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, found.splitlines())}
    descends = {pid}
    for _ in parents:
        descends |= {child for child, parent in parents.items() if parent in descends}
    return descends - {pid}


SCRIPT = """
import sys, time
import numpy as np
from own_data import Numbers
from mpidl.data import Indexed
train = Indexed(Numbers(seconds=0.05), Numbers(), workers=2).open().train
for _ in train.in_turn([np.arange(4)] * 3):
    pass
train.prepare(np.arange(20))
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_no_worker_outlives_the_process_that_trains(how, tmp_path, bare_environment):
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = bare_environment | {"PYTHONPATH": f"{os.path.dirname(__file__)}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "0.5" if how == "ends" else "60"],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    workers = children(process.pid)
    assert len(workers) >= 3  # with the server that starts them
    if how == "is killed":
        process.kill()
    assert process.wait(60) == (0 if how == "ends" else -9)
    until = time.monotonic() + 60
    while left := {pid for pid in workers if os.path.exists(f"/proc/{pid}")}:
        assert time.monotonic() < until, left
        time.sleep(0.02)


def test_workers_leave_signals_to_the_process_that_trains():
    before = multiprocessing.active_children()
    train = split(Numbers(seconds=0.02), 1)
    train.gather(np.array([0]))
    (worker,) = set(multiprocessing.active_children()) - set(before)
    for number in (2, 15, 1, 10):
        os.kill(worker.pid, number)
    assert train.gather(np.array([5, 6])).targets.tolist() == [1, 0]


def test_a_log_of_reads_has_every_sample_once(tmp_path):
    train = split(Log(tmp_path / "log", 50), 2)
    (tmp_path / "log").unlink()
    for _ in train.in_turn(np.array_split(np.random.default_rng(1).permutation(50), 9)):
        pass
    assert sorted(map(int, (tmp_path / "log").read_text().split())) == list(range(50))
