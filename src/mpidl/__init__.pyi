"""What the package exports; `__init__.py` imports each name at its first use."""

from . import algorithms as algorithms
from . import config as config
from . import data as data
from . import loggers as loggers
from . import nn as nn
from . import rules as rules
from .algorithms import Downpour as Downpour
from .algorithms import Sandblaster as Sandblaster
from .algorithms import Sync as Sync
from .config import Config as Config
from .data import Arrays as Arrays
from .data import Batch as Batch
from .data import Dataset as Dataset
from .data import Digits as Digits
from .data import Indexed as Indexed
from .errors import MpidlError as MpidlError
from .errors import UsageError as UsageError
from .history import open as open
from .loggers import Logger as Logger
from .loops import loop as loop
from .nn import Dense as Dense
from .nn import Network as Network
from .report.summary import EvaluationSummary as EvaluationSummary
from .report.summary import Summary as Summary
from .rules import Adagrad as Adagrad
from .rules import Adam as Adam
from .rules import Momentum as Momentum
from .rules import Sgd as Sgd
from .runs.evaluate import evaluate as evaluate
from .runs.load import load as load
from .runs.train import train as train
from .storage.checkpoints import Trained as Trained

__version__: str
