"""When a worker looks for orders to save."""

import time
from types import SimpleNamespace

import pytest

from mpidl.engines.mpi.marking import LOOK_EVERY, Marking
from mpidl.transport.protocol import Order, Phase


@pytest.fixture
def handler():
    """A handler that counts how often it is asked for an order."""
    lead = SimpleNamespace(share=lambda decide: decide())
    found = SimpleNamespace(lead=lead, together=False, count=0)

    def order(marked):
        found.count += 1
        return Order(0, 0, Phase.TRAIN)

    found.order = order
    return found


@pytest.mark.parametrize(("interval", "again"), [(LOOK_EVERY, True), (3600 * LOOK_EVERY, False)])
def test_a_worker_looks_for_orders_as_often_as_its_link_says(handler, tmp_path, interval, again):
    marking = Marking(0, handler, None, None, tmp_path)
    link = SimpleNamespace(interval=lambda shortest: interval * shortest / LOOK_EVERY, taken=lambda: 0)
    marking.bind(link, wait=None)
    marking._looked = time.perf_counter() - 2 * interval
    marking.look()
    assert handler.count == 1
    time.sleep(2 * LOOK_EVERY)
    marking.look()
    assert handler.count == 1 + again
