"""A watch over a directory: whether anything in it is opened, written, made or removed, by Python or by a library."""

import ctypes
import os
import struct
from pathlib import Path

#: Of Linux's inotify: opened, written, made, removed, renamed.
EVENTS = 0x20 | 0x2 | 0x100 | 0x200 | 0x40 | 0x80


class Watched:
    """Watches a directory and those in it, until it is closed."""

    def __init__(self, directory):
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        directories = [directory, *(path for path in directory.rglob("*") if path.is_dir())]
        self._paths = {
            libc.inotify_add_watch(self._descriptor, os.fsencode(path), ctypes.c_uint32(EVENTS)): path
            for path in directories
        }

    def touched(self):
        """Return the paths of what has been touched since the last call."""
        found = []
        try:
            events = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return found
        while events:
            watch, _, _, length = struct.unpack_from("iIII", events)
            name = events[16 : 16 + length].rstrip(b"\0")
            found.append(Path(self._paths[watch], os.fsdecode(name)))
            events = events[16 + length :]
        return found

    def close(self):
        os.close(self._descriptor)
