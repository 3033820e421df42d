"""Points of a run at which a process can be made to die, so that what follows a death there can be tested.

``MPIDL_DIE=RANK:POINT:COUNT`` has the process that began as a rank kill itself by SIGKILL when it passes a point for
the COUNT-th time. Several are separated by commas.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Mapping

from mpidl.errors import UsageError, nearest, quoted, shown
from mpidl.launch.environment import world

VARIABLE = "MPIDL_DIE"

#: The points by name: what the process has just done.
POINTS = {
    "job-built": "any rank: built its part of the job, without a window yet",
    "training-begins": "any rank: made its role, before the first fetch",
    "ticket-taken": "worker: taken a ticket for a portion, not begun it",
    "gradient-computed": "worker: computed a gradient, not pushed it",
    "data-written": "worker: written chunks into rings, not the counters that show them",
    "counter-written": "worker: shown one server its chunks, not the others",
    "chunk-begun": "server: taken a chunk out of a ring, not applied it",
    "chunk-noted": "server: noted that it is applying a chunk, not begun to",
    "half-applied": "server: updated one segment of a chunk, if it has several (model.group, matrices), or one matrix",
    "chunk-applied": "server: applied a chunk, not freed its slot",
    "chunks-released": "server: applied chunks, not shown the worker that their slots are free",
    "mark-taken": "server: copied its shard for a checkpoint",
    "file-written": "server: written its file of a checkpoint, not sealed it",
    "checkpoint-ordered": "coordinator: ordered a checkpoint",
    "index-written": "coordinator: written a checkpoint's index, not given the checkpoint its name",
    "checkpoint-named": "coordinator: given a checkpoint its name, not recorded it",
    "evaluated": "worker: evaluated its part of a split, not posted the figures",
    "looked": "coordinator: read the other ranks' status",
    "taking-over": "successor: begun to take over the rank of a process that has died",
    "taken-over": "successor: gone on with that rank's memory, not said so",
    "trained": "worker: announced that it pushes no more",
    "summary-written": "coordinator: written the summary, not ordered the exit",
    "exit-ordered": "any rank: left its role, before the job is taken apart",
}  # fmt: skip


def _go_on(name: str) -> None:
    """Pass a point without a death."""


def passing(environment: Mapping[str, str] = os.environ) -> Callable[[str], None]:
    """Return what a process calls at a point, given its environment.

    Raise UsageError for a value of ``MPIDL_DIE`` that isn't ``RANK:POINT:COUNT`` with a point that there is.
    """
    deaths = [_parse(each) for each in environment.get(VARIABLE, "").split(",") if each]
    rank = world(environment).rank if deaths else 0
    own = {(name, count) for of, name, count in deaths if of == rank}
    if not own:
        return _go_on
    passed: Counter[str] = Counter()

    def pass_point(name: str) -> None:
        passed[name] += 1
        if (name, passed[name]) in own:
            os.kill(os.getpid(), signal.SIGKILL)

    return pass_point


def _parse(text: str) -> tuple[int, str, int]:
    found = re.fullmatch(r"(\d{1,9}):([^:]*):([1-9]\d{0,8})", text)
    if found is None:
        raise UsageError(f"{VARIABLE}={shown(text)} in the environment: expected RANK:POINT:COUNT, such as 2:trained:1")
    if found[2] not in POINTS:
        raise UsageError(f"{VARIABLE}: no point {quoted(found[2])}{nearest(found[2], list(POINTS))}")
    return int(found[1]), found[2], int(found[3])


#: Called with the name of a point at the point.
fault_point = passing()
