"""The training algorithms, one file each, as generators of requests; `ALGORITHMS` maps names to their classes."""

from mpidl.algorithms.algorithm import Algorithm, Exchange
from mpidl.algorithms.averaging import Averaging, Fedprox
from mpidl.algorithms.commits import Adag, Agn, Dynsgd
from mpidl.algorithms.diloco import Diloco
from mpidl.algorithms.downpour import Downpour, Rescaled
from mpidl.algorithms.elastic import Aeasgd, Eamsgd, Easgd
from mpidl.algorithms.gradients import BackupSync, Dcasgd, Ringleader, Softsync, Ssp
from mpidl.algorithms.ringmaster import Ringmaster
from mpidl.algorithms.sandblaster import Sandblaster
from mpidl.algorithms.stacking import Stacking
from mpidl.algorithms.without_servers import Hogwild, Sync

_ALL: tuple[type[Algorithm], ...] = (
    Adag, Aeasgd, Agn, Averaging, BackupSync, Dcasgd, Diloco, Downpour, Dynsgd, Eamsgd, Easgd, Fedprox, Hogwild,
    Rescaled, Ringleader, Ringmaster, Sandblaster, Softsync, Ssp, Stacking, Sync,
)  # fmt: skip
ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in _ALL}
# The ADAG of dist-keras, with a window, is the AGN of Hermans' thesis.
ALGORITHMS["adag_window"] = Agn

__all__ = [
    "ALGORITHMS",
    "Adag",
    "Aeasgd",
    "Agn",
    "Algorithm",
    "Averaging",
    "BackupSync",
    "Dcasgd",
    "Diloco",
    "Downpour",
    "Dynsgd",
    "Eamsgd",
    "Easgd",
    "Exchange",
    "Fedprox",
    "Hogwild",
    "Rescaled",
    "Ringleader",
    "Ringmaster",
    "Sandblaster",
    "Softsync",
    "Ssp",
    "Stacking",
    "Sync",
]
