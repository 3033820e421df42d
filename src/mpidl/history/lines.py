"""Files of JSON lines, which others may be writing, and of which some lines may be no record and no event."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from mpidl.paths import open_regular

#: Largest magnitude of a number: sums and differences of a few such numbers are finite.
LARGEST = 1e300
#: Bytes of lines that are decoded at a time.
BLOCK = 1 << 18

_Number = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
_Figure = _Number | bool | None
_Figures = dict[str, _Figure | dict[str, _Figure]]
_Count = Annotated[float, Meta(ge=0, le=LARGEST)]
_Plain = _Figure | str
_Detail = _Plain | list[_Plain | list[_Plain]] | dict[str, _Plain | list[_Plain] | dict[str, _Plain]]


class _Record(msgspec.Struct):
    """What is known of a report; the place of a point is a whole number of 53 bits in all tools."""

    samples: Annotated[float, Meta(ge=0, le=1 << 53)]
    time: _Count = 0.0
    unix_time: _Count = 0.0
    staleness_histogram: list[_Count] | None = None
    owner_samples: list[_Count] | None = None
    staleness: dict[str, Any] | None = None
    iteration: dict[str, Any] | None = None
    shares: dict[str, Any] | None = None


class _Event(msgspec.Struct):
    event: str
    time: _Count | None = None
    virtual_time: _Count | None = None
    rank: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    role: str | None = None


class Kind(NamedTuple):
    """What the lines of a file are: a name, the decoder of a line, and the type of the known items of many lines.

    `lists` has the names of the items that may be lists; None for any.
    """

    name: str
    decoder: msgspec.json.Decoder[dict[str, Any]]
    known: Any
    lists: frozenset[str] | None = None


OBJECT = Kind("object", msgspec.json.Decoder(dict[str, Any]), list[Any])
RECORD = Kind(
    "record",
    msgspec.json.Decoder(dict[str, _Figure | _Figures | list[_Figure]]),
    list[_Record],
    frozenset({"staleness_histogram", "owner_samples"}),
)
EVENT = Kind("event", msgspec.json.Decoder(dict[str, _Detail]), list[_Event])


def decoded(content: bytes, kind: Kind = OBJECT) -> tuple[list[dict[str, Any]], int]:
    """Return the objects in whole lines of JSON, and how many lines are none of that kind and were left out."""

    def of_kind(lines: bytes) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = kind.decoder.decode_lines(lines)
        msgspec.convert(found, kind.known)
        if kind.lists is not None:
            for each in found:
                if not {name for name, value in each.items() if type(value) is list} <= kind.lists:
                    raise ValueError("a list in place of a number")
        return found

    try:
        return of_kind(content), 0
    except (ValueError, RecursionError):
        found, skipped = [], 0
        for line in filter(bytes.strip, content.split(b"\n")):
            try:
                found += of_kind(line)
            except (ValueError, RecursionError):
                skipped += 1
        return found, skipped


def blocks(content: bytes, kind: Kind = OBJECT) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Yield what `decoded` returns of one block of whole lines after another."""
    end = 0
    while end < (size := content.rfind(b"\n") + 1):
        begin, end = end, content.find(b"\n", min(end + BLOCK, size - 1)) + 1
        yield decoded(content[begin:end], kind)


def read(file: Path) -> tuple[bytes, list[str]]:
    """Return the content of a file, and why it can't be read, if so; nothing of a file that doesn't exist."""
    try:
        with open_regular(file) as opened:
            return opened.read(), []
    except FileNotFoundError:
        return b"", []
    except OSError as error:
        return b"", [f"{file.name}: {error.strerror or error}, left out"]


def left_out(file: Path, kind: Kind, skipped: int) -> list[str]:
    """Return what to say of lines that were left out."""
    lines = f"1 line that is no {kind.name} is" if skipped == 1 else f"{skipped:,} lines that are no {kind.name}s are"
    return [f"{file.name}: {lines} left out"] if skipped else []


def bounded(value: Any) -> Any:
    """Return a value of JSON with None in place of numbers beyond `LARGEST`."""
    if isinstance(value, dict):
        return {name: bounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [bounded(each) for each in value]
    return None if isinstance(value, int | float) and not abs(value) <= LARGEST else value


class Tail:
    """What is appended to a file of lines, which need not exist yet.

    Attributes
    ----------
    notes : list of str
        What was left out so far.
    """

    def __init__(self, file: Path, kind: Kind) -> None:
        self._file, self._kind = file, kind
        self._place = self._file_number = self._skipped = 0
        self.notes: list[str] = []

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the objects since the last call, and whether these are all of a new file, or of one cut shorter."""
        try:
            with open_regular(self._file) as file:
                found = os.fstat(file.fileno())
                anew = found.st_ino != self._file_number or found.st_size < self._place
                if anew:
                    self._place, self._file_number, self._skipped = 0, found.st_ino, 0
                file.seek(self._place)
                content = file.read()
        except OSError:
            _, self.notes = read(self._file)
            return [], False
        content = content[: content.rfind(b"\n") + 1]
        self._place += len(content)
        objects, skipped = decoded(content, self._kind)
        self._skipped += skipped
        self.notes = left_out(self._file, self._kind, self._skipped)
        return objects, anew
