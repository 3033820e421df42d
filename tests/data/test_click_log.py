"""The field's text form of clicks: lines, and what is wrong with some."""

import numpy as np
import pytest
import xxhash
from data_files import fails

from mpidl.data import ClickLog
from mpidl.errors import MpidlError


def made(count, seed=3):
    """Return random lines as lists of 40 fields, some of them empty, some long."""
    random = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        numbers = [
            "" if random.random() < 0.2 else str(random.integers(-3, 10 ** random.integers(1, 18))) for _ in range(13)
        ]
        sizes = random.choice([0, 1, 3, 4, 7, 8, 8, 8, 11, 16, 31, 32, 33, 70], 26)
        categories = ["".join(random.choice(list("0123456789abcdef"), size)) for size in sizes]
        lines.append([str(random.integers(2)), *numbers, *categories])
    return lines


def expected(lines, seed=0, ids=None):
    """Return inputs and targets, with hashes of the library."""
    inputs = []
    for _, *fields in lines:
        hashes = [
            xxhash.xxh64_intdigest(text.encode(), 26 * seed + feature) for feature, text in enumerate(fields[13:])
        ]
        hashes = [each - (each >> 63 << 64) if ids is None else each % ids for each in hashes]
        inputs.append([int(each or 0) for each in fields[:13]] + hashes)
    return np.array(inputs, np.int64), np.array([[int(label)] for label, *_ in lines], np.float32)


def write(path, lines, newline="\n", end=True):
    text = newline.join("\t".join(fields) for fields in lines) + newline * end
    path.write_bytes(text.encode())
    return str(path)


LINES = made(900)


@pytest.fixture
def files(tmp_path):
    """Three files of 500, 1 and 399 lines: several pieces, no newline at the end, and newlines of Windows."""
    write(tmp_path / "day_0", LINES[:500])
    write(tmp_path / "day_1", LINES[500:501], end=False)
    write(tmp_path / "day_2", LINES[501:], newline="\r\n")
    return tmp_path


@pytest.mark.parametrize(("seed", "ids"), [(0, None), (5, None), (1, 1000)])
def test_samples_of_several_files(files, seed, ids):
    source = ClickLog(str(files / "day_*"), test=[str(files / "day_1"), str(files / "day_0")], seed=seed, ids=ids)
    dataset = source.open()
    inputs, targets = expected(LINES, seed, ids)
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("click_log", (39,), None)
    assert (dataset.train.samples, dataset.test.samples) == (900, 501)
    assert dataset.test.gather(np.arange(2)).targets.tolist() == targets[[500, 0]].tolist()
    for split in (dataset.train, dataset.train.as_integers().copy()):
        split.prefetch(np.arange(480, 520))
        for chosen in (np.arange(900), np.arange(499, 503)[::-1], np.array([7, 899, 500, 7]), np.array([510, 490])):
            batch = split.gather(chosen)
            assert np.array_equal(batch.inputs, inputs[chosen])
            assert np.array_equal(batch.targets, targets[chosen])
    assert (batch.inputs.dtype, batch.targets.dtype) == (np.int64, np.float32)
    with pytest.raises(IndexError, match=r"outside \[0, 900\)"):
        split.gather(np.array([900]))


def test_missing_categories_of_features_differ(tmp_path):
    line = ["0", *[""] * 39]
    inputs = ClickLog(write(tmp_path / "x", [line], end=False)).open().train.gather(np.zeros(1, int)).inputs[0]
    assert inputs[:13].tolist() == [0] * 13
    assert len(set(inputs[13:].tolist())) == 26


WRONG = {
    "label": (0, "2", "label '2', expected 0 or 1"),
    "long label": (0, "10", "label '10', expected 0 or 1"),
    "fraction": (4, "1.5", r"number 4 is '1\.5', expected a whole number of at most 18 digits, or nothing"),
    "NaN": (1, "nan", "number 1 is 'nan', expected a whole number"),
    "sign": (13, "-", "number 13 is '-', expected"),
    "long number": (2, "1" * 19, "number 2 is '1111111111111111111', expected a whole number of at most 18"),
    "a tab too many": (20, "a\tb", "40 tabs, expected 39: a label, 13 numbers and 26 categories"),
    "a line cut short": (9, "5\n", "9 tabs, expected 39"),
    "other separators": (30, "a\nb", "30 tabs, expected 39"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_malformed_line_is_one_line(files, case):
    place, found, message = WRONG[case]
    lines = [list(fields) for fields in LINES[:40]]
    lines[17][place] = found
    split = ClickLog([str(files / "day_0"), write(files / "bad", lines)]).open().train
    assert split.gather(np.arange(510, 517)).inputs.shape == (7, 39)
    fails(lambda: split.gather(np.arange(510, 530)), rf"bad: line 18: {message}", MpidlError)


def test_a_file_that_has_become_shorter_is_one_line(files):
    split = ClickLog(str(files / "day_0")).open().train
    write(files / "day_0", LINES[:10])
    with pytest.raises(MpidlError, match=r"day_0: line 11: 0 tabs, expected 39"):
        split.gather(np.arange(20))
    (files / "day_0").unlink()
    with pytest.raises(MpidlError, match=r"day_0: lines 21 to 30 can't be read \(No such file or directory\)"):
        split.gather(np.arange(20, 30))


def test_files_that_are_wrong_are_one_line(files):
    (files / "empty").touch()
    (files / "packed.gz").write_bytes(b"\x1f\x8b" + bytes(30))
    for name, message in {
        "other": "data.path: .*other: no such file, expected a text file",
        "*.tsv": r"data\.path: .*\*\.tsv: matches no file, expected text files",
        ".": "data.path: .*: not a file, expected a text file",
        "empty": "data.path: .*empty: no lines, expected at least one",
        "packed.gz": r"data.path: .*: compressed by gzip, expected text \(gunzip packed.gz\)",
    }.items():
        fails(ClickLog(str(files / name)).open, message)
    fails(ClickLog(str(files / "day_0"), test=str(files / "other")).open, r"data\.test: .*other: no such file")
