"""Files of JSON lines, which others may be writing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from mpidl.paths import open_regular


def decoded(content: bytes, kind: Any = Any) -> list[Any]:
    """Return the values in whole lines of JSON, of a type for `msgspec`; others are left out."""
    decoder = msgspec.json.Decoder(kind)
    try:
        return decoder.decode_lines(content)
    except (ValueError, RecursionError):
        found = []
        for line in content.split(b"\n"):
            with suppress(ValueError, RecursionError):
                found.append(decoder.decode(line))
        return found


class Tail:
    """What is appended to a file of lines, which need not exist yet; `kind` is that of `decoded`."""

    def __init__(self, file: Path, kind: Any = Any) -> None:
        self._file, self._kind = file, kind
        self._place, self._file_number = 0, 0

    def read(self) -> tuple[list[Any], bool]:
        """Return the values since the last call, and whether these are all of a new file, or of one cut shorter."""
        try:
            with open_regular(self._file) as file:
                found = os.fstat(file.fileno())
                anew = found.st_ino != self._file_number or found.st_size < self._place
                if anew:
                    self._place, self._file_number = 0, found.st_ino
                file.seek(self._place)
                content = file.read()
        except OSError:
            return [], False
        content = content[: content.rfind(b"\n") + 1]
        self._place += len(content)
        return decoded(content, self._kind), anew
