"""Algorithms, one file each, as generators of requests; `ALGORITHMS` maps the names that configurations use."""

from mpidl.algorithms.adag import Adag
from mpidl.algorithms.aeasgd import Aeasgd
from mpidl.algorithms.agn import Agn
from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.dcasgd import Dcasgd
from mpidl.algorithms.downpour import Downpour
from mpidl.algorithms.dynsgd import Dynsgd
from mpidl.algorithms.eamsgd import Eamsgd
from mpidl.algorithms.easgd import Easgd
from mpidl.algorithms.softsync import Softsync
from mpidl.algorithms.ssp import Ssp

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (Adag, Aeasgd, Agn, Dcasgd, Downpour, Dynsgd, Eamsgd, Easgd, Softsync, Ssp)
}
# What the notes of dist-keras' users call ADAG with a window is the thesis' AGN.
ALGORITHMS["adag_window"] = Agn

__all__ = [
    "ALGORITHMS",
    "Adag",
    "Aeasgd",
    "Agn",
    "Algorithm",
    "Dcasgd",
    "Downpour",
    "Dynsgd",
    "Eamsgd",
    "Easgd",
    "Softsync",
    "Ssp",
]
