"""Messages from ranks to the launcher `mpidl train -n`: marks in its stderr, which arrives from any node."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

from mpidl.launch.output import ignore, send

#: Environment variable of ranks whose launcher listens: its identity.
VARIABLE = "MPIDL_LAUNCHER"
#: Environment variable that gives ranks the launcher's own command line.
COMMAND = "MPIDL_COMMAND"
#: Environment variable of ranks whose launcher draws their progress on a terminal.
TERMINAL = "MPIDL_TERMINAL"

#: All ranks block the signals that ask to stop, and will handle them.
READY = "ready"
#: First words of messages on the ranks' nodes, on work that is done and saved, and on a run's progress.
NODES = "nodes"
SAVED = "saved"
PROGRESS = "progress"
#: First words of messages on the directory of a run that begins, and on a rank that ends the job because it failed.
RUN = "run"
FAILED = "failed"

#: A newline, because launchers may hold back an unfinished line.
BEGIN, END = b"\x02mpidl:", b"\x03\n"
#: The longest mark is a run's title; anything longer belongs to a user's own output.
WORD = rb"[^\x00-\x1f]"
MARK = re.compile(re.escape(BEGIN) + rb"(" + WORD + rb"{1,4096})" + END)
#: Characters of the longest text of nodes, and of the longest path.
LONGEST = 4000
#: The beginning of a mark at the end of a text.
PART = re.compile(rb"\x02(?:m(?:p(?:i(?:d(?:l(?::" + WORD + rb"{0,4096}\x03?)?)?)?)?)?)?\Z")


def tell(word: str, then: Callable[[], object] = ignore) -> None:
    """Send the launcher one line of text, if it listens; call `then` if stderr has been closed."""
    if VARIABLE in os.environ:
        send(BEGIN + word.encode() + END, then)


def tell_done(code: int, ranks: int) -> None:
    """Inform the launcher, if it listens, that everything is written and the exit code will be `code`."""
    tell(f"{SAVED} {code}")
    if ranks > 1:
        # This, and the end of the progress bar, need time to pass through the launcher.
        time.sleep(0.2)


def tell_failed(cause: str, again: bool = True, rank: int | None = None, role: str = "") -> None:
    """Inform the launcher, if it listens, of the cause that ends the job; a text without control characters.

    If it starts `again`, the job may succeed. The `rank` with its `role` is one that has died, if that is the cause.
    """
    tell(f"{FAILED} {json.dumps([cause[: LONGEST // 8], again, rank, role])}")


def tell_run(directory: Path) -> None:
    """Inform the launcher, if it listens, of the directory of the run that begins."""
    text = json.dumps(str(directory))
    if len(text) <= LONGEST:
        tell(f"{RUN} {text}")


def listen(chunks: Iterable[bytes], hear: Callable[[str], None]) -> Iterator[bytes]:
    """Yield a job's stderr without its marks, and call `hear` with the text of each."""
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


def nodes_as_text(nodes: list[int]) -> str | None:
    """Return the node of each rank as a short text; None if there is no short one."""
    text = " ".join(f"{node}x{len(list(ranks))}" for node, ranks in groupby(nodes))
    return text if len(text) <= LONGEST else None


def nodes_from_text(text: str) -> list[int]:
    """Return the node of each rank from the text of `nodes_as_text`."""
    nodes: list[int] = []
    for part in text.split():
        node, ranks = part.split("x")
        nodes += [int(node)] * int(ranks)
    return nodes
