"""Open MPI's messages about UCX, where it is of no use."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from mpi4py import MPI

#: The control variable with the level of messages to print; 0 still prints errors.
VERBOSE = b"opal_common_ucx_verbose"


def quieten() -> None:
    """Keep Open MPI from printing a line about UCX for each window, although MPI has begun with UCX in place.

    By MPI's tool information interface (MPI 4.1, section 15.3). Other MPI libraries have no such variable.
    """
    library = ctypes.CDLL(MPI.__file__)
    level, index, handle, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    with suppress(AttributeError):
        # Open MPI takes another level for that of the whole library from then on.
        library.MPI_T_init_thread(MPI.Query_thread(), ctypes.byref(level))
        if not library.MPI_T_cvar_get_index(VERBOSE, ctypes.byref(index)):
            library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count))
            library.MPI_T_cvar_write(handle, ctypes.byref(ctypes.c_int(-1)))
            library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        library.MPI_T_finalize()
