"""Update rules: how a server applies a gradient to its shard."""

from mpidl.rules.adagrad import Adagrad
from mpidl.rules.adam import Adam
from mpidl.rules.adamw import Adamw
from mpidl.rules.momentum import Momentum
from mpidl.rules.nesterov import Nesterov
from mpidl.rules.rmsprop import Rmsprop
from mpidl.rules.rule import Rule
from mpidl.rules.schedule import RateSchedule
from mpidl.rules.sgd import Sgd

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Sgd, Momentum, Nesterov, Adagrad, Rmsprop, Adam, Adamw)}

__all__ = ["RULES", "Adagrad", "Adam", "Adamw", "Momentum", "Nesterov", "RateSchedule", "Rmsprop", "Rule", "Sgd"]
