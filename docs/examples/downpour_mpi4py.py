"""Downpour SGD on one-sided MPI, with mpi4py and NumPy alone.

    mpirun -n 3 python downpour_mpi4py.py

Dean et al. 2012, Large Scale Distributed Deep Networks, section 4.1. Each server holds a shard of the parameters. A
worker fetches the parameters, computes a gradient on a minibatch of its own part of the data, and pushes it. Servers
apply gradients by Adagrad in the order of their arrival. No worker waits for another, so that a gradient may be stale:
computed on parameters that other workers have changed since.

A server's memory is a window, which all ranks read and write:

    published[workers]  consumed[workers]  parameters[shard]  slots[workers][SLOTS][shard]

Each worker has a ring of slots as its mailbox. It writes a gradient into the next slot, and then increments
`published`. The server applies the gradient and increments `consumed`, which frees the slot. Each counter has a single
writer, so that no lock is needed.
"""

import time

import numpy as np
from mpi4py import MPI

STEPS, BATCH, RATE, SLOTS = 300, 32, 0.05, 4
INPUTS, HIDDEN, CLASSES = 64, 32, 10
SIZE = INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES

comm = MPI.COMM_WORLD
SERVERS = max(1, comm.size // 3)
WORKERS = comm.size - SERVERS
#: Bounds of the servers' shards in the flat parameter vector. Ranks 0 to SERVERS - 1 are the servers.
BOUNDS = [SIZE * server // SERVERS for server in range(SERVERS + 1)]


class Layout:
    """Displacements in a server's window, in bytes."""

    def __init__(self, server):
        self.shard = BOUNDS[server + 1] - BOUNDS[server]
        self.parameters = 2 * 8 * WORKERS
        self.slots = self.parameters + 4 * self.shard
        self.size = self.slots + 4 * self.shard * SLOTS * WORKERS

    def slot(self, worker, push):
        return self.slots + 4 * self.shard * (SLOTS * worker + push % SLOTS)


class Server:
    """Holds a shard, and applies the gradients that arrive in its window."""

    def __init__(self, window):
        layout = Layout(comm.rank)
        memory = np.frombuffer(window.tomemory(), np.uint8)
        memory[:] = 0
        counters = memory[: layout.parameters].view(np.int64)
        self.published, self.consumed = counters[:WORKERS], counters[WORKERS:]
        self.parameters = memory[layout.parameters : layout.slots].view(np.float32)
        self.slots = memory[layout.slots :].view(np.float32).reshape(WORKERS, SLOTS, layout.shard)
        self.parameters[:] = initial()[BOUNDS[comm.rank] : BOUNDS[comm.rank + 1]]
        self.squares = np.zeros_like(self.parameters)
        self.window = window
        window.Sync()  # The first parameters are visible to others.

    def run(self):
        """Apply gradients until all workers have finished."""
        everyone = comm.Ibarrier()
        # Between nodes, no MPI library carries out others' operations on this window unless this rank keeps calling
        # MPI. `Test` is such a call, and no update takes long.
        while not everyone.Test():
            if not self.apply_published():
                time.sleep(1e-4)

    def apply_published(self):
        """Apply the gradients that are in the mailboxes; return their number."""
        self.window.Sync()  # What others have written is visible here.
        waiting = self.published - self.consumed
        for worker in np.flatnonzero(waiting):
            for push in range(self.consumed[worker], self.published[worker]):
                self.adagrad(self.slots[worker, push % SLOTS])
                self.consumed[worker] += 1
        return waiting.sum()

    def adagrad(self, gradient):
        self.squares += gradient * gradient
        self.parameters -= RATE * gradient / (np.sqrt(self.squares) + 1e-8)


class Worker:
    """A replica of the model, with its part of the data."""

    def __init__(self, window):
        self.window, self.number, self.pushed = window, comm.rank - SERVERS, 0
        self.parameters = np.empty(SIZE, np.float32)
        self.layouts = [Layout(server) for server in range(SERVERS)]

    def run(self):
        inputs, labels = samples(8192, seed=1)
        inputs, labels = inputs[self.number :: WORKERS], labels[self.number :: WORKERS]
        random, losses = np.random.default_rng(self.number), []
        for step in range(1, STEPS + 1):
            self.fetch()
            chosen = random.integers(len(inputs), size=BATCH)
            loss, gradient = loss_and_gradient(self.parameters, inputs[chosen], labels[chosen])
            self.push(gradient)
            losses.append(loss)
            if self.number == 0 and step % 50 == 0:
                print(f"step {step}: loss {np.mean(losses[-50:]):.3f}", flush=True)
        while any(self.consumed(server) < self.pushed for server in range(SERVERS)):
            time.sleep(1e-4)
        comm.Ibarrier().Wait()

    def fetch(self):
        """Copy all shards; a copy may have a part of an update that the server is making."""
        for server, layout in enumerate(self.layouts):
            self.window.Get(self.parameters[BOUNDS[server] : BOUNDS[server + 1]], server, layout.parameters)
        self.window.Flush_all()

    def push(self, gradient):
        """Put a gradient into the mailboxes, and wait only for room in them."""
        count = np.array([self.pushed + 1], np.int64)
        for server, layout in enumerate(self.layouts):
            while self.pushed - self.consumed(server) >= SLOTS:
                time.sleep(1e-4)
            part = gradient[BOUNDS[server] : BOUNDS[server + 1]]
            self.window.Put(part, server, layout.slot(self.number, self.pushed))
            self.window.Flush(server)  # Puts may overtake each other: the counter follows when the gradient is there.
            self.window.Put(count, server, 8 * self.number)
            self.window.Flush(server)
        self.pushed += 1

    def consumed(self, server):
        count = np.empty(1, np.int64)
        self.window.Get(count, server, 8 * (WORKERS + self.number))
        self.window.Flush(server)
        return count[0]


# The model, two dense layers, and the data, points around the centres of ten classes.


def tensors(vector):
    """Return weights and biases of both layers, as views of a flat vector."""
    first, bias, second, last = np.split(vector, np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES]))
    return first.reshape(INPUTS, HIDDEN), bias, second.reshape(HIDDEN, CLASSES), last


def initial():
    vector, random = np.zeros(SIZE, np.float32), np.random.default_rng(0)
    for tensor in tensors(vector)[::2]:
        tensor[:] = random.normal(scale=len(tensor) ** -0.5, size=tensor.shape)
    return vector


def samples(count, seed):
    centres = np.random.default_rng(0).normal(size=(CLASSES, INPUTS))
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=count)
    return (centres[labels] + 2 * random.normal(size=(count, INPUTS))).astype(np.float32), labels


def forward(parameters, inputs):
    first, bias, second, last = tensors(parameters)
    hidden = np.maximum(inputs @ first + bias, 0)
    return hidden, hidden @ second + last


def loss_and_gradient(parameters, inputs, labels):
    """Return the mean softmax cross-entropy and its gradient, a flat vector."""
    hidden, outputs = forward(parameters, inputs)
    outputs = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    outputs /= outputs.sum(axis=1, keepdims=True)
    right = np.arange(len(labels)), labels
    loss = -np.log(outputs[right] + 1e-12).mean()
    outputs[right] -= 1
    outputs /= len(labels)
    back = outputs @ tensors(parameters)[2].T * (hidden > 0)
    parts = inputs.T @ back, back.sum(axis=0), hidden.T @ outputs, outputs.sum(axis=0)
    return loss, np.concatenate([part.ravel() for part in parts])


def main():
    if comm.size < 2:
        raise SystemExit("expected at least two ranks: mpirun -n 3 python downpour_mpi4py.py")
    serves = comm.rank < SERVERS
    window = MPI.Win.Allocate(Layout(comm.rank).size if serves else 0, comm=comm)
    window.Lock_all(MPI.MODE_NOCHECK)
    rank = (Server if serves else Worker)(window)
    comm.Barrier()  # Servers have their first parameters.
    rank.run()
    window.Unlock_all()
    shards = comm.gather(rank.parameters)
    if comm.rank == 0:
        inputs, labels = samples(2000, seed=2)
        _, outputs = forward(np.concatenate(shards[:SERVERS]), inputs)
        print(f"test accuracy {(outputs.argmax(axis=1) == labels).mean():.3f}")
    window.Free()


if __name__ == "__main__":
    main()
