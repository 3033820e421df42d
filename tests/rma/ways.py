"""The ways in which ranks reach each other's memory."""

WAYS = ("allocate", "create", "messages", "mixed")


def opened(comm, shapes, way="allocate"):
    """Return remote memory: an MPI window of either kind, or one whose remote operations are messages."""
    from mpidl.rma.messages import MessageWindow
    from mpidl.rma.windows import Window

    if way in ("messages", "mixed"):
        return MessageWindow(comm, shapes, mixed=way == "mixed")
    return Window(comm, shapes, way)
