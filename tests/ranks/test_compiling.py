"""On ranks too, everything is compiled before the clock starts."""

import pytest
from numba.core.dispatcher import Dispatcher
from small_runs import digits

import mpidl
from mpidl.algorithms import Downpour, Easgd, Hogwild, Sandblaster, Sync
from mpidl.jit import COMPILATION
from mpidl.roles.coordinator import Coordinator
from mpidl.roles.server import Server
from mpidl.roles.worker import Worker
from mpidl.rules import rule
from mpidl.wire import wire

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.mark.parametrize(
    "algorithm", [Downpour(n_push=2, rate=0.01, wire="topk:0.1"), Easgd(), Hogwild(), Sandblaster(), Sync()]
)
def test_nothing_is_compiled_while_ranks_train(comm, shared_path, monkeypatch, algorithm):
    rule.compiled.cache_clear()
    wire.compiled.cache_clear()
    names, at_start, add = [], [], Dispatcher.add_overload

    def noting(self, result):
        names.append(self.__name__)
        add(self, result)

    def starting(method):
        return lambda self: (at_start.extend(names), method(self))[1]

    monkeypatch.setattr(Dispatcher, "add_overload", noting)
    monkeypatch.setattr(Worker, "run", starting(Worker.run))
    monkeypatch.setattr(Server, "run", starting(Server.run))
    monkeypatch.setattr(Coordinator, "run", starting(Coordinator.run))
    mpidl.train(config=digits(shared_path, run={"epochs": 2}), algorithm=algorithm)
    assert names == at_start
    assert names or comm.rank == 0  # The coordinator computes nothing.


def test_the_first_rank_says_what_each_start_compiles_anew(comm, shared_path, monkeypatch, capfd):
    monkeypatch.setattr(COMPILATION, "lost", comm.rank)
    monkeypatch.setattr(COMPILATION, "seconds", comm.rank + 0.5)
    mpidl.train(config=digits(shared_path, run={"steps": 2}))
    lines = [line for line in capfd.readouterr().err.splitlines() if "anew" in line]
    last = comm.size - 1
    told = f"mpidl: each start compiles {last} functions anew, {last + 0.5} s of processor time: "
    assert [line[: len(told)] for line in lines] == [told] * (comm.rank == 0)
