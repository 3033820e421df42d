"""DistBelief on MPI: asynchronous training through a sharded parameter server on one-sided windows."""

import os

import lazy_loader

from mpidl.version import VERSION as __version__

# A script may begin MPI before it calls anything of the package, and raise anywhere: no other rank must wait for it.
if not os.environ.keys().isdisjoint(("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")):
    from mpidl.launch.environment import prepare_rank
    from mpidl.runs.process import end_job_together

    prepare_rank()
    end_job_together()

# `__init__.pyi` lists what the package exports. Each name is imported at its first use, so that `import mpidl` and
# the command line start at once.
_exported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> object:
    """Import an exported name; the error for a class that only its room exports says which room that is."""
    try:
        return _exported(name)
    except AttributeError:
        if name[:1].isupper():
            for room in map(_exported, ("algorithms", "config", "data", "nn", "rules")):
                for found in room.__all__:
                    if found.casefold() == name.casefold():
                        where = "mpidl" if found in __all__ else room.__name__
                        raise AttributeError(f"mpidl.{name} is {where}.{found}") from None
        raise
