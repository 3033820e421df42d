"""Runs of small problems on the ranks of the test's world, what one worker does as a plain loop, and roles by hand."""

import mpidl
from mpidl.data import Dataset, Portions
from mpidl.rules import Sgd


def dataset(split):
    """Return a data set that trains and tests on the same samples."""
    return Dataset("test", (1,), None, split, split)


def run(problem, path, **options):
    """Train a problem's model with batches of 8, by plain SGD at rate 1 unless its replicas step alone."""
    model, split = problem
    rule = None if options.get("algorithm", mpidl.Downpour()).default_rule is None else Sgd(1.0)
    options = {"epochs": 2, "batch": 8, "seed": 7, "dir": str(path), "rule": rule} | options
    return mpidl.train(model, dataset(split), **options)


def serial_sgd(problem, rate, batch=8, epochs=2):
    """Train a problem's model by stochastic gradient descent on its portions with the seed 7; return the parameters."""
    model, split = problem
    portions = Portions(split.samples, batch, batch, seed=7)
    for number in range(epochs * portions.per_epoch):
        for indices in portions.batches(number):
            model.parameters -= rate * model.loss_and_gradient(split.gather(indices))[1]
    return model.parameters


def serve(comm, transport, server):
    """Play a server until training is over."""
    server.bind(transport)
    comm.Barrier()
    server.run()


def coordinate(comm, transport):
    """Play the coordinator until each worker has sent it a message."""
    from mpidl.transport.protocol import Phase

    link = transport.coordinator()
    link.orders.set_phase(Phase.TRAIN)
    comm.Barrier()
    backoff = link.backoff()
    for rank in transport.workers:
        while not comm.iprobe(rank):
            backoff.pause()
        comm.recv(source=rank)
    link.orders.set_phase(Phase.EXIT)
