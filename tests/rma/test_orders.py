"""A rank's own memory of the coordinator's orders."""

from types import SimpleNamespace

import numpy as np

from mpidl.rma.orders import OwnOrders
from mpidl.transport.protocol import Control, Order, Phase


def test_an_order_is_read_when_it_has_changed():
    numbers = np.zeros(len(Control), np.int64)
    numbers[Control.PHASE] = Phase.TRAIN
    orders = OwnOrders(SimpleNamespace(window=SimpleNamespace(local=lambda name: numbers)))
    first = orders.read()
    assert first == Order(number=0, last=0, phase=Phase.TRAIN)
    assert orders.read() is first
    numbers[[Control.ORDER, Control.LAST, Control.REDUCTIONS, Control.CUT]] = 7, 8, 2, 6
    assert orders.read() == Order(number=7, last=8, phase=Phase.TRAIN, reductions=2, cut=6)
