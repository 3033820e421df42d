"""The usual text format of click logs: a label, 13 numbers and 26 categories in a line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, BlockArrays, Blocks, Gatherer
from mpidl.data.builtin import SeededSource
from mpidl.data.dataset import Dataset, Split
from mpidl.data.hdf5_files import found_files
from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.schema import Count

NUMBERS, FEATURES = 13, 26
FIELDS = 1 + NUMBERS + FEATURES
#: Bytes of a piece of a file, for which the index has a number, and pieces that are read at a time to make it.
PIECE, PIECES = 1 << 16, 64
NUMBER = re.compile(rb"(-?\d{1,18})?")


@dataclass(frozen=True)
class ClickLog(SeededSource):
    """Text files of clicks: in each line a label, 13 numbers and 26 categories, separated by tabs.

    Inputs are (39,) int64: first the numbers, 0 for one that is missing, then an id for each category. Targets are
    (1,), 1 for a click, for one output and the loss ``one_vs_all_logistic``. An id is the hash of the category's text,
    ``xxhash.xxh64_intdigest(text.encode(), 26 * seed + feature)``, as int64. Equal texts of two features have different
    ids, and a missing category has an id of its own in each feature.

    The lines are counted at the start. Two portions of a split are in memory at a time.

    Attributes
    ----------
    path : str or list of str
        Path of the file of training samples; or paths of several, whose samples follow one another. A path may be a
        pattern such as ``"day_*"`` for all matching files, sorted.
    test : str or list of str, optional
        Likewise those of test samples.
    seed : int
        Seed of the hashes.
    ids : int, optional
        Ids are hashes modulo this number, which may collide; by default they are whole hashes of 64 bits.
    """

    name: ClassVar[str] = "click_log"
    path: str | list[str]
    test: str | list[str] | None = None
    ids: Count | None = None

    def open(self) -> Dataset:
        train = ClickLogSplit(self, _opened("data.path", self.path))
        test = None if self.test is None else ClickLogSplit(self, _opened("data.test", self.test))
        return Dataset(self.name, (NUMBERS + FEATURES,), None, train, test)


def _opened(key: str, given: str | list[str]) -> list[LogFile]:
    return [LogFile(key, path) for path in found_files(key, given, "text file")]


class LogFile:
    """A file of lines, with an index of their places.

    Attributes
    ----------
    path : Path
    lines : int

    Raises
    ------
    UsageError
        It can't be read, or has no line.
    """

    def __init__(self, key: str, path: Path) -> None:
        if not path.is_file():
            found = "not a file" if path.exists() else "no such file"
            raise UsageError(f"{key}: {path}: {found}, expected a text file")
        self.path = path
        counts, ends, memory = [0], True, bytearray(PIECE * PIECES)
        try:
            with path.open("rb", buffering=0) as file:
                while size := file.readinto(memory):
                    if len(counts) == 1 and memory[:2] == b"\x1f\x8b":
                        raise UsageError(f"{key}: {path}: compressed by gzip, expected text (gunzip {path.name})")
                    pieces = range(0, size, PIECE)
                    counts += [memory.count(b"\n", start, min(start + PIECE, size)) for start in pieces]
                    ends = memory[size - 1 : size] == b"\n"
        except OSError as error:
            raise UsageError(f"{key}: {path}: can't be read ({error.strerror})") from None
        # Newlines before each piece, and in all.
        self._newlines = np.cumsum(counts)
        self.lines = int(self._newlines[-1]) + (not ends)
        if not self.lines:
            raise UsageError(f"{key}: {path}: no lines, expected at least one")

    def text(self, start: int, stop: int) -> tuple[NDArray[np.uint8], int]:
        """Return the text with lines [start, stop), in whole pieces and a newline, and the lines before them there."""
        first, last = (max(0, int(np.searchsorted(self._newlines, line)) - 1) for line in (start, stop))
        with self.path.open("rb", buffering=0) as file:
            file.seek(first * PIECE)
            size = (last + 1 - first) * PIECE
            text = np.empty(size + 1, np.uint8)
            memory, read = text.data, 0
            while read < size and (more := file.readinto(memory[read:size])):
                read += more
        text[read] = ord("\n")
        return text[: read + 1], start - int(self._newlines[first])


class ClickLogSplit(Split):
    """The lines of some files, read block by block."""

    contiguous = by_parts = True

    def __init__(self, source: ClickLog, files: list[LogFile]) -> None:
        self._source, self._files = source, files
        self._starts = np.cumsum([0, *(file.lines for file in files)])
        self.samples = int(self._starts[-1])
        self._blocks = Blocks(self.samples, self._read, self._pick)
        self._gatherer = Gatherer(integers=True)

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        """Start to read a contiguous portion in the background; other samples are left to `gather`."""
        self._blocks.prefetch(indices)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        return self._blocks.gather(self._gatherer, indices)

    def copy(self) -> ClickLogSplit:
        return ClickLogSplit(self._source, self._files)

    def _read(self, start: int, stop: int, memory: BlockArrays | None) -> BlockArrays:
        size = stop - start
        if memory is None or len(memory[0]) < size:
            memory = np.empty((size, NUMBERS + FEATURES), np.int64), np.empty((size, 1), np.float32)
        for file, first in zip(self._files, self._starts.tolist(), strict=False):
            begin, end = max(start, first), min(stop, first + file.lines)
            if begin < end:
                own = slice(begin - start, end - start)
                self._parse(file, begin - first, end - first, *(array[own] for array in memory))
        return memory

    def _pick(self, rows: NDArray[np.int64]) -> BlockArrays:
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        parts = [self._read(int(run[0]), int(run[-1]) + 1, None) for run in runs]
        inputs, targets = map(np.concatenate, zip(*parts, strict=True))
        return inputs, targets

    def _parse(self, file: LogFile, start: int, stop: int, inputs: Any, targets: Any) -> None:
        from mpidl.data.click_parsing import parse, skip

        try:
            text, before = file.text(start, stop)
        except OSError as error:
            raise MpidlError(f"{file.path}: lines {start + 1} to {stop} can't be read ({error.strerror})") from None
        seed, ids = np.uint64(self._source.seed), np.uint64(self._source.ids or 0)
        lines, at = parse(text, skip(text, before), NUMBERS, seed, ids, inputs, targets)
        if start + lines < stop:
            line = text[at:].tobytes().partition(b"\n")[0]
            raise MpidlError(f"{file.path}: line {start + lines + 1}: {_fault(line)}")


def _fault(line: bytes) -> str:
    """Return what is wrong with a line."""
    label, *others = fields = line.removesuffix(b"\r").split(b"\t")
    if len(fields) != FIELDS:
        return f"{len(fields) - 1} tabs, expected {FIELDS - 1}: a label, {NUMBERS} numbers and {FEATURES} categories"
    if label not in (b"0", b"1"):
        return f"label {quoted(label.decode(errors='replace'))}, expected 0 or 1"
    number, found = next((number, each) for number, each in enumerate(others, 1) if not NUMBER.fullmatch(each))
    expected = "expected a whole number of at most 18 digits, or nothing"
    return f"number {number} is {quoted(found.decode(errors='replace'))}, {expected}"
