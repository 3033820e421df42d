"""A model whose gradient takes as long as the rows of a batch take on their way to a worker."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from mpidl.data import ArraySplit, Dataset
from mpidl.data.batch import Batch
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters import Layout
from mpidl.rma.answers import AnswerReader
from mpidl.tables.lookups import TableSpec, Wanted

#: From the benchmark: seconds of a gradient, and of an answer's way; ids of a sample, and samples.
SECONDS, IDS, SAMPLES = (float(os.environ.get(f"AHEAD_{name}", "1")) for name in ("SECONDS", "IDS", "SAMPLES"))
ROWS = 100_000


class Slow(CompleteModel):
    """Rows, each with a gradient of 1, and a core that is free meanwhile."""

    def __init__(self) -> None:
        self.parameters, self.dtype = np.zeros(1, np.float32), np.dtype(np.float32)
        self.layout, self.takes_integers = Layout([("one", (1,))]), True
        self.tables = [TableSpec("rows", 16, ROWS)]

    def wanted(self, batch: Batch) -> list[Wanted]:
        return [Wanted(0, self.tables[0].checked(batch.inputs))]

    def loss_and_gradient(self, batch: Batch) -> tuple[float, np.ndarray]:
        ((table, ids),) = self.wanted(batch)
        found = self.rows.look_up(table, ids)
        time.sleep(SECONDS)
        found.gradient = np.ones_like(found.rows)
        return 0.0, np.ones(1, np.float32)

    def evaluate(self, batch: Batch) -> Evaluation:
        return Evaluation(0.0, 0)


class Late:
    """Answers of servers that are on their way for a time."""

    def __init__(self) -> None:
        self._due: dict[AnswerReader, deque[float]] = {}
        self._expect, self._take = AnswerReader.expect, AnswerReader.start_taking

    def expect(self, asked: AnswerReader, targets: Sequence[np.ndarray]) -> None:
        self._due.setdefault(asked, deque()).append(time.perf_counter() + SECONDS)
        self._expect(asked, targets)

    def start_taking(self, asked: AnswerReader) -> int:
        if due := self._due.get(asked):
            time.sleep(max(0.0, due[0] - time.perf_counter()))
        taken = self._take(asked)
        for _ in range(taken):
            due.popleft() if due else None
        return taken


def network(dataset: object = None, seed: int = 0) -> Slow:
    """Return the model; answers are late from then on."""
    late = Late()
    AnswerReader.expect = lambda asked, targets: late.expect(asked, targets)  # type: ignore[method-assign]
    AnswerReader.start_taking = lambda asked: late.start_taking(asked)  # type: ignore[method-assign]
    return Slow()


def data() -> Dataset:
    """Return ids."""
    ids = np.random.default_rng(0).integers(0, ROWS, (int(SAMPLES), int(IDS)))
    return Dataset("ids", (int(IDS),), None, ArraySplit(ids, np.zeros((int(SAMPLES), 1))))
