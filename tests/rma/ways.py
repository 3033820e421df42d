"""The ways in which ranks reach each other's memory, and transports without servers."""

WAYS = ("allocate", "create", "messages", "mixed")


def opened(comm, shapes, way="allocate"):
    """Return remote memory: an MPI window of either kind, or one whose remote operations are messages."""
    from mpidl.rma.messages import MessageWindow
    from mpidl.rma.windows import Window

    if way in ("messages", "mixed"):
        return MessageWindow(comm, shapes, mixed=way == "mixed")
    return Window(comm, shapes, way)


def transport_of_workers(comm, way="windows"):
    """Return a transport whose first rank coordinates, and the others work."""
    import numpy as np

    from mpidl.parameters import Range
    from mpidl.rma.transport import Transport
    from mpidl.topology.roles import assign
    from mpidl.transport.capacity import Capacity

    shards = [Range(number, number + 1) for number in range(comm.size - 1)]
    return Transport(comm, assign([0] * comm.size, 0), Capacity(shards, np.float32, sums=4), way=way)
