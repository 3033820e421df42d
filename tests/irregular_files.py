"""What may lie where a file is expected: each function makes one at a path, maybe of a file of that name outside."""

import os
import socket


def pipe(path, outside):
    os.mkfifo(path)


def link(path, outside):
    path.symlink_to(outside / path.name)


def endless(path, outside):
    path.symlink_to("/dev/zero")


def listening(path, outside):
    with socket.socket(socket.AF_UNIX) as made:
        descriptor = os.open(path.parent, os.O_PATH)
        made.bind(f"/proc/self/fd/{descriptor}/{path.name}")
        os.close(descriptor)


def directory(path, outside):
    path.mkdir()


IRREGULAR = [pipe, link, endless, listening, directory]
