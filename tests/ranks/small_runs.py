"""Runs of small problems on the ranks of the test's world, what one worker does as a plain loop, and roles by hand."""

import mpidl
from mpidl.config import from_dict
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


def digits(directory, *units, **more):
    """Return the sections of a job on the embedded digits: a layer of 10 units behind others, and what is given."""
    layers = [{"type": "dense", "units": each} for each in (*units, 10)]
    sections = {"run": {"dir": str(directory)}, "data": {"source": "digits"}, "model": {"layer": layers}}
    sections["device"] = {"kind": "cpu"}
    return sections | {name: sections.get(name, {}) | table for name, table in more.items()}


def run_job(comm, config):
    """Run a configuration, or the sections of one, on all ranks; return the summary."""
    from mpidl.job.build import build
    from mpidl.runs.ranks import run

    config = from_dict(config) if isinstance(config, dict) else config
    return run(config, lambda: build(config), comm)


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
