"""JAX functions as models: a pytree of parameters and a function that returns the loss."""

from mpidl.errors import UsageError
from mpidl.launch.environment import prepare_libraries, world

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError:
    raise UsageError("mpidl.jax: JAX isn't installed: pip install 'mpidl[jax]'") from None

from mpidl.jax.model import JaxModel
from mpidl.jax.sequence import JaxSequence, JaxStage, sections
from mpidl.tables.lookups import TableSpec

__all__ = ["JaxModel", "JaxSequence", "JaxStage", "TableSpec", "sections"]

# JAX starts one thread per core with the first array; on ranks the environment sets their number.
if world().size > 1:
    prepare_libraries()
