"""The training algorithms, one file each, as generators of requests; `ALGORITHMS` maps names to their classes."""

from mpidl.algorithms.adag import Adag
from mpidl.algorithms.aeasgd import Aeasgd
from mpidl.algorithms.agn import Agn
from mpidl.algorithms.algorithm import Algorithm, Exchange
from mpidl.algorithms.averaging import Averaging
from mpidl.algorithms.backup_sync import BackupSync
from mpidl.algorithms.dcasgd import Dcasgd
from mpidl.algorithms.diloco import Diloco
from mpidl.algorithms.downpour import Downpour
from mpidl.algorithms.dynsgd import Dynsgd
from mpidl.algorithms.eamsgd import Eamsgd
from mpidl.algorithms.easgd import Easgd
from mpidl.algorithms.fedprox import Fedprox
from mpidl.algorithms.hogwild import Hogwild
from mpidl.algorithms.rescaled import Rescaled
from mpidl.algorithms.ringleader import Ringleader
from mpidl.algorithms.sandblaster import Sandblaster
from mpidl.algorithms.softsync import Softsync
from mpidl.algorithms.ssp import Ssp
from mpidl.algorithms.stacking import Stacking
from mpidl.algorithms.sync import Sync

_ALL: tuple[type[Algorithm], ...] = (
    Adag, Aeasgd, Agn, Averaging, BackupSync, Dcasgd, Diloco, Downpour, Dynsgd, Eamsgd, Easgd, Fedprox, Hogwild,
    Rescaled, Ringleader, Sandblaster, Softsync, Ssp, Stacking, Sync,
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
    "Sandblaster",
    "Softsync",
    "Ssp",
    "Stacking",
    "Sync",
]
