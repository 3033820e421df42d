"""Processes that make a dataset's batches ahead.

They are never forked from a process that uses MPI. Each has a connection to the training process and ends when that
is closed: at the end of the run, or when that process is killed. The standard library's process pool can't tell which
worker died at which sample, and its workers don't survive a scheduler's SIGTERM, after which the run has yet to save.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import util
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.collation import BatchMaker
from mpidl.errors import MpidlError, UsageError, raised
from mpidl.functions import seed_generators
from mpidl.launch.output import show_traceback

#: Environment of workers: they have a core each, and a script that imports MPI must not initialise it there.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MPI4PY_RC_INITIALIZE": "0"}
#: Signals that stop a run, and those of a terminal: only the training process reacts to them.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
#: Seconds to wait for the end of a process whose connection is closed.
JOIN_TIMEOUT = 5.0


class Workers:
    """A number of worker processes, which receive `maker` by pickle and start with the first batch.

    Before each sample they seed the generators of Python, NumPy and PyTorch from its index and the epoch, so that
    random changes don't depend on the number of workers.
    """

    def __init__(self, maker: BatchMaker, count: int) -> None:
        self._maker, self.count = maker, count
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the processes unless they run; UsageError if the dataset can't be sent to them."""
        with self._lock:
            if self._workers:
                return
            recipe = pickled(self._maker)
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["__main__", __name__])
            with _environment():
                try:
                    self._workers = [_Worker(context, recipe, number) for number in range(self.count)]
                except (OSError, EOFError):
                    raise _not_started() from None
            connections = [worker.connection for worker in self._workers]
            # Before the standard library waits for the processes at exit.
            util.Finalize(self, _close, (connections,), exitpriority=100)

    def submit(self, split: str, indices: NDArray[np.int64], epoch: int = 0) -> Task:
        """Have the worker with the fewest tasks make a batch."""
        self.start()
        with self._lock:
            worker = min(self._workers, key=lambda worker: len(worker.tasks))
            task = Task(self._lock, worker, split)
            worker.tasks.append(task)
            with suppress(OSError):  # `result` reports the worker's end
                worker.connection.send((split, indices, epoch))
        return task


def pickled(maker: BatchMaker) -> bytes:
    """Return what is sent to worker processes; UsageError if that is impossible."""
    try:
        return pickle.dumps(maker)
    except Exception as error:
        found = f"the dataset can't be sent to worker processes: pickle {raised(error)}"
        raise UsageError(f"data.workers: {found}, expected one that can be pickled, or workers = 0") from error


def received(recipe: bytes) -> BatchMaker:
    """Return what a worker process makes of it; UsageError if it can't."""
    try:
        maker: BatchMaker = pickle.loads(recipe)
        return maker
    except Exception as error:
        raise UsageError(f"data.workers: the dataset, in a worker process, {raised(error)}") from error


class Task:
    """A batch that a worker is making."""

    def __init__(self, lock: threading.Lock, worker: _Worker, split: str) -> None:
        self._lock, self._worker, self.split = lock, worker, split
        self.answer: Batch | MpidlError | None = None

    def result(self) -> Batch:
        """Wait for the batch and return it; MpidlError if it can't be made, or the worker has ended."""
        with self._lock:
            while self.answer is None:
                self._worker.receive()
        if isinstance(self.answer, MpidlError):
            raise self.answer
        return self.answer


class _Worker:
    """The training process's handle of a worker."""

    def __init__(self, context: Any, recipe: bytes, number: int) -> None:
        self.tasks: deque[Task] = deque()
        self._ready, self._number = False, number
        self._index = context.RawValue("q", -1)
        self.connection, there = context.Pipe()
        self._process = context.Process(
            target=_work, args=(there, recipe, self._index), name=f"data-worker-{number}", daemon=True
        )
        self._process.start()
        there.close()

    def receive(self) -> None:
        """Receive the answer to the oldest task."""
        try:
            if not self._ready:
                error = self.connection.recv()
                if error is not None:
                    raise error
                self._ready = True
            self.tasks[0].answer = _receive(self.connection)
            self.tasks.popleft()
        except (EOFError, OSError):
            raise self._died() from None

    def _died(self) -> MpidlError:
        self._process.join(JOIN_TIMEOUT)
        code, index = self._process.exitcode, self._index.value
        if not self._ready:
            return _not_started()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        where = f"{self.tasks[0].split} sample {index}" if index >= 0 else "a batch"
        return MpidlError(f"data: worker process {self._number} {how} at {where}")


def _not_started() -> UsageError:
    guard = '`if __name__ == "__main__":` around mpidl.train in the script, which they import'
    return UsageError(f"data.workers: worker processes can't start, expected {guard}")


def imported_by_worker() -> bool:
    """Return whether a worker process, which must not train, is importing the main script."""
    # As `multiprocessing` itself sees it: there is no public way while the script is imported.
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        connection.close()


@contextmanager
def _environment() -> Iterator[None]:
    """Set the variables of `ENVIRONMENT` while processes start."""
    before = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name in ENVIRONMENT:
            del os.environ[name]
        os.environ.update(before)


def _send(connection: Connection, answer: Any) -> None:
    """Send an answer without copying its arrays into the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(answer, 5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    connection.send((head, [each.nbytes for each in raw]))
    for each in raw:
        connection.send_bytes(each)


def _receive(connection: Connection) -> Any:
    head, sizes = connection.recv()
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        connection.recv_bytes_into(buffer.data)
    return pickle.loads(head, buffers=buffers)


# Code of the worker processes.


def _work(connection: Connection, recipe: bytes, index: Any) -> None:
    """Make batches until the connection is closed."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    tasks: SimpleQueue[tuple[str, NDArray[np.int64], int]] = SimpleQueue()
    threading.Thread(target=_take, args=(connection, tasks), daemon=True).start()
    try:
        maker = received(recipe)
    except UsageError as error:
        connection.send(error)
        return
    connection.send(None)
    while True:
        split, indices, epoch = tasks.get()

        def begin(sample: int, split: str = split, epoch: int = epoch) -> None:
            index.value = sample
            seed_generators(zlib.crc32(f"{split} {epoch} {sample}".encode()))

        try:
            _send(connection, maker.make(split, indices, begin))
        except MpidlError as error:
            if os.environ.get("MPIDL_DEBUG"):
                show_traceback(error)
            _send(connection, error)
        except OSError:
            return
        except Exception as error:
            _send(connection, MpidlError(f"data: sending a batch of {split} samples {raised(error)}"))


def _take(connection: Connection, tasks: SimpleQueue[Any]) -> None:
    """Receive tasks while the worker computes; end the process when the connection is closed."""
    with suppress(EOFError, OSError):
        while True:
            tasks.put(connection.recv())
    os._exit(0)
