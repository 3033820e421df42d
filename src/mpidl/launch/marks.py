"""What the first rank tells the launcher `mpidl train -n`, as marks in its stderr, which comes from any node."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

__all__ = ["COMMAND", "NODES", "PROGRESS", "READY", "SAVED", "TERMINAL", "VARIABLE", "listen", "saved", "tell"]

#: Environment variable of ranks whose launcher listens.
VARIABLE = "MPIDL_LAUNCHER"
#: Environment variable that gives ranks the launcher's own command line.
COMMAND = "MPIDL_COMMAND"
#: Environment variable of ranks whose launcher draws their progress on a terminal.
TERMINAL = "MPIDL_TERMINAL"

#: All ranks hold the signals that ask to stop, and will take them up.
READY = "ready"
#: The first words of what is told of the ranks' nodes, of work that is done and saved, and of a run's progress.
NODES = "nodes"
SAVED = "saved"
PROGRESS = "progress"

#: Launchers may keep a line that has not ended.
BEGIN, END = b"\x02mpidl:", b"\x03\n"
#: The longest mark is a run's title; more may be part of a user's own output.
WORD = rb"[^\x00-\x1f]"
MARK = re.compile(re.escape(BEGIN) + rb"(" + WORD + rb"{1,4096})" + END)
#: The beginning of a mark at the end of a text.
PART = re.compile(rb"\x02(?:m(?:p(?:i(?:d(?:l(?::" + WORD + rb"{0,4096}\x03?)?)?)?)?)?)?\Z")


def saved(code: int) -> str:
    """Return the word for a command that has written all it has to write, and ends with exit code `code`."""
    return f"{SAVED} {code}"


def tell(word: str) -> None:
    """Tell the launcher something, in one line of text, if it listens."""
    if VARIABLE in os.environ:
        os.write(2, BEGIN + word.encode() + END)


def listen(chunks: Iterable[bytes], hear: Callable[[str], None]) -> Iterator[bytes]:
    """Yield a job's stderr without its marks, and call `hear` with what each says."""
    pending = b""
    for chunk in chunks:
        *before, rest = _split(pending + chunk, hear)
        part = PART.search(rest)
        pending = b"" if part is None else part[0]
        text = b"".join(before) + rest[: len(rest) - len(pending)]
        if text:
            yield text
    if pending:
        yield pending


def _split(text: bytes, hear: Callable[[str], None]) -> Iterator[bytes]:
    start = 0
    for mark in MARK.finditer(text):
        yield text[start : mark.start()]
        hear(mark[1].decode(errors="replace"))
        start = mark.end()
    yield text[start:]
