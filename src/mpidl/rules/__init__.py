"""Update rules: how a server applies a gradient to its shard."""

from mpidl.rules.muon import Muon
from mpidl.rules.optimizers import Adagrad, Adam, Adamw, Momentum, Nesterov, Rmsprop, Sgd
from mpidl.rules.rule import Rule
from mpidl.rules.schedule import RateSchedule
from mpidl.rules.tensors import TensorRule

RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (Sgd, Momentum, Nesterov, Adagrad, Rmsprop, Adam, Adamw, Muon)
}

__all__ = [
    "RULES",
    "Adagrad",
    "Adam",
    "Adamw",
    "Momentum",
    "Muon",
    "Nesterov",
    "RateSchedule",
    "Rmsprop",
    "Rule",
    "Sgd",
    "TensorRule",
]
