"""DistBelief on MPI: asynchronous training through a sharded parameter server on one-sided windows."""

import lazy_loader

from mpidl.version import VERSION as __version__

# `__init__.pyi` lists what the package exports. Each name is imported at its first use, so that `import mpidl` and
# the command line start at once.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
