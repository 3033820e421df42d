"""The operations of this process that change files, as Python's audit hooks see them."""

import inspect
import os
import sys
from contextlib import contextmanager

import h5py

#: Events of functions of `os`: the places of the paths among their arguments, and of the directories of these.
EVENTS = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.chmod": ((0, 2),),
    "os.truncate": ((0, None),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

#: Lists that get each operation.
_listeners = []


def _audit(event, arguments):
    if not _listeners:
        return
    if event == "open" and arguments[2] & WRITING:
        path, mode, _ = arguments
        # The event of `os.open`, which has no mode, lacks the directory to which a path is relative, but its caller,
        # `mpidl.paths.regular`, has it. Before, `open` has told the same name.
        frame = inspect.currentframe().f_back
        opener = mode is None and frame.f_globals.get("__name__") == "mpidl.paths"
        for each in _listeners:
            if opener and each and each[-1] == ("open", _resolved(path)):
                each.pop()
        _tell(event, path, frame.f_locals.get("directory") if opener else None)
    for path, directory in EVENTS.get(event, ()):
        _tell(event, arguments[path], None if directory is None else arguments[directory])


def _resolved(path, directory=None):
    above = f"/proc/self/fd/{directory}" if isinstance(directory, int) and directory >= 0 else "."
    parent, name = os.path.split(os.path.join(above, os.fsdecode(path)))
    return os.path.join(os.path.realpath(parent), name)


def _tell(event, path, directory=None):
    if not isinstance(path, int):
        for each in _listeners:
            each.append((event, _resolved(path, directory)))


sys.addaudithook(_audit)


@contextmanager
def listed(monkeypatch):
    """Yield a list that gets each operation: its event and the path, in which no directory is a link."""
    found = []

    def of_hdf5(function, writes):
        def call(name, *arguments, **keywords):
            if writes(arguments, keywords) and not name.startswith(b"<"):
                _tell("hdf5", name)
            return function(name, *arguments, **keywords)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(h5py.h5f, "create", of_hdf5(h5py.h5f.create, lambda arguments, keywords: True))
        reads = h5py.h5f.ACC_RDONLY, h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ
        flags = lambda arguments, keywords: arguments[:1] and arguments[0] not in reads  # noqa: E731
        patched.setattr(h5py.h5f, "open", of_hdf5(h5py.h5f.open, flags))
        _listeners.append(found)
        try:
            yield found
        finally:
            _listeners.remove(found)
