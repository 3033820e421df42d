"""Readers of a run's JSON files, which may be growing: invalid lines and objects are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from mpidl.paths import open_regular
from mpidl.schema import MALFORMED

#: Largest magnitude of a number: sums and differences of a few such numbers are finite.
LARGEST = 1e300
#: Bytes of lines that are decoded at a time.
BLOCK = 1 << 18
#: Most bytes that are read of a summary or a status, which has 300 for each rank.
MOST = 1 << 26

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


RECORD = Kind(
    "record",
    msgspec.json.Decoder(dict[str, _Figure | _Figures | list[_Figure]]),
    list[_Record],
    frozenset({"staleness_histogram", "owner_samples"}),
)
EVENT = Kind("event", msgspec.json.Decoder(dict[str, _Detail]), list[_Event])


def decoded(content: bytes, kind: Kind) -> tuple[list[dict[str, Any]], int]:
    """Return the objects in complete lines of JSON, and the number of lines of another kind, which are skipped."""

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
    except MALFORMED:
        found, skipped = [], 0
        for line in filter(bytes.strip, content.split(b"\n")):
            try:
                found += of_kind(line)
            except MALFORMED:
                skipped += 1
        return found, skipped


class Lines:
    """The objects in a file of lines, which need not exist yet: each reading returns those written since the last.

    Parameters
    ----------
    file : Path
    kind : Kind
        Lines of another kind are skipped.
    place : int
        Bytes that are passed over.

    Attributes
    ----------
    skipped : int
        Number of complete lines that were skipped so far.
    anew : bool
        Whether the objects that were read last are all of a new file, or of one that has been cut shorter.
    """

    def __init__(self, file: Path, kind: Kind, place: int = 0) -> None:
        self._file, self._kind, self._place = file, kind, place
        self._file_number: int | None = None
        self._unread: list[str] = []
        self.skipped, self.anew = 0, False

    def blocks(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the new objects, block by block."""
        self.anew, self._unread = False, []
        try:
            with open_regular(self._file) as file:
                found = os.fstat(file.fileno())
                self.anew = self._file_number not in (None, found.st_ino) or found.st_size < self._place
                if self.anew:
                    self._place = self.skipped = 0
                self._file_number = found.st_ino
                file.seek(self._place)
                while end := (content := file.read(BLOCK) + file.readline()).rfind(b"\n") + 1:
                    objects, skipped = decoded(content[:end], self._kind)
                    self._place += end
                    self.skipped += skipped
                    yield objects
        except FileNotFoundError:
            return
        except OSError as error:
            self._unread = [f"{self._file.name}: {error.strerror or error}, left out"]

    def read(self) -> list[dict[str, Any]]:
        """Return the new objects."""
        return list(chain.from_iterable(self.blocks()))

    @property
    def notes(self) -> list[str]:
        """Notes on skipped lines, and on a file that can't be read."""
        kind, skipped = self._kind.name, self.skipped
        lines = f"1 line that is no {kind} is" if skipped == 1 else f"{skipped:,} lines that are no {kind}s are"
        return self._unread + ([f"{self._file.name}: {lines} left out"] if skipped else [])


def read_object(file: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the object of a file of JSON without numbers beyond `LARGEST`, and notes on what is left out.

    It is None if there is no file, or the file isn't an object.
    """
    try:
        with open_regular(file) as opened:
            content = msgspec.json.decode(opened.read(MOST), type=dict[str, Any])
        found = _bounded(content)
    except FileNotFoundError:
        return None, []
    except (OSError, *MALFORMED) as error:
        return None, [f"{file.name}: {getattr(error, 'strerror', None) or 'no object of JSON'}, left out"]
    return found, [] if found == content else [f"{file.name}: numbers beyond {LARGEST:g} are left out"]


def _bounded(value: Any) -> Any:
    """Return a value of JSON with None in place of numbers beyond `LARGEST`."""
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_bounded(each) for each in value]
    return None if isinstance(value, int | float) and not abs(value) <= LARGEST else value


class RankStatus(msgspec.Struct, kw_only=True):
    """What a rank does; None where that isn't known.

    Attributes
    ----------
    rank : int
    role : str
        Such as "worker 0" or "server 1".
    host : str or None
        None of a simulated cluster.
    process : int or None
        The process that plays the rank, by the rank that it began as.
    state : str or None
        "starting", "working", "trained" (its part of the training is over), "done" (the run is) or, of a worker whose
        process has died, "dead".
    samples : number or None
        Samples that a worker has trained on.
    samples_per_second : float or None
        Since the last status; of the whole training when that is over.
    seconds : float or None
        Time of training so far, of which `shares` are the fractions by activity: those of a worker have the names of
        a record's shares; a server's are "computing" and "rest".
    staleness : float or None
        Mean staleness of the pushes to a server since the last status that knew of any.
    queue : number or None
        Pushes that wait at a server.
    memory : number or None
        Bytes in memory of the process that plays it.
    """

    rank: int
    role: str = ""
    host: str | None = None
    process: int | None = None
    state: str | None = None
    samples: float | None = None
    samples_per_second: float | None = None
    seconds: float | None = None
    shares: Mapping[str, float | None] | None = None
    staleness: float | None = None
    queue: float | None = None
    memory: float | None = None

    def share(self, activity: str) -> float | None:
        """Return the fraction of its time that it has spent on an activity."""
        return (self.shares or {}).get(activity)
