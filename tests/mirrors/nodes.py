"""Nodes of one process: a thread for each rank, and a directory for each node's memory."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mpidl.launch import shared_memory
from mpidl.mirrors.feature import begin, recover
from mpidl.parameters import Layout, Range
from mpidl.storage.files import replica_file
from mpidl.storage.position import Position
from mpidl.storage.writer import CheckpointIndex, save_shard, write_file

LAYOUT = Layout([("weight", (5, 4))])
#: The node of each rank, by its lowest rank. Rank 0 coordinates, 1 to 3 are servers, and rank 4 is a worker.
NODES = [0, 1, 2, 2, 2]
SHARDS = [Range(0, 8), Range(8, 13), Range(13, 20)]
EVERY = 5.0


class Nodes:
    """Nodes on which one run makes mirrors, and on which it recovers from them."""

    def __init__(self, directory, monkeypatch, run):
        self.run, self._directory, self._local = run, directory, threading.local()
        for node in set(NODES):
            self.memory(node).mkdir()
        monkeypatch.setattr(shared_memory, "SHARED_MEMORY", self)

    def __truediv__(self, name):
        """What is below the shared memory of the thread's own node."""
        return self.memory(self._local.node) / name

    def memory(self, node):
        return self._directory / f"node{node}"

    def files(self, node):
        """The names of the files of mirrors on a node, by the mirrors' own names."""
        found = {}
        for path in self.memory(node).rglob("*.h5"):
            found.setdefault(path.parent.name, set()).add(path.name)
        return found

    def paths(self, name):
        """The copies of a file of a mirror."""
        return sorted(self._directory.rglob(name))

    def make(self, *steps, values=1.0, write=save_shard, token="ab12"):
        """Let the run make a mirror of each step; return for each whether it is complete, or None if it makes none."""
        parameters = values * np.arange(20, dtype=np.float32)

        def act(rank, gather):
            with begin(EVERY, self.run, token, 100, rank, NODES, gather) as interim:
                if interim is None:
                    return None
                complete = []
                for number, step in enumerate(steps, 1):
                    directory = interim.scratch(2 * number)
                    if 1 <= rank <= 3:
                        part = SHARDS[rank - 1]
                        state = {"parameters": parameters[slice(*part)], "clock": np.array(step)}
                        write(directory, rank - 1, part, state)
                    if rank == 4:
                        write_file(directory / replica_file(0), {}, {"local": parameters})
                    gather(None)
                    if rank == 0:
                        position = Position(step, 10 * step, 1.0, 0, [])
                        index = CheckpointIndex(LAYOUT, 3, position, "[run]\n", "0.0.1", {}, [replica_file(0)])
                        complete.append(interim.complete(2 * number, index))
                    gather(None)
                return complete

        return self.together(range(len(NODES)), act)[0]

    def recover(self, newer_than, nodes=(0, 1, 2)):
        """Let a job on the nodes that are left look for a mirror; return its step, and the lines."""
        ranks = [rank for rank, node in enumerate(NODES) if node in nodes]
        found = self.together(ranks, lambda rank, gather: recover(self.run, newer_than, rank, gather))
        assert found == found[:1] * len(found)
        return found[0]

    def together(self, ranks, action):
        """Return what an action returns on each rank, which has a new number."""
        barrier, slots = threading.Barrier(len(ranks), timeout=60), [None] * len(ranks)

        def act(number):
            self._local.node = NODES[ranks[number]]

            def gather(value):
                slots[number] = value
                barrier.wait()
                found = list(slots)
                barrier.wait()
                return found

            try:
                return action(number, gather)
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(len(ranks)) as threads:
            return list(threads.map(act, range(len(ranks))))
