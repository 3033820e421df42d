"""A sleeping rank is woken by what happens on its connections."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mpidl.rma.sockets import FIND_EVERY, LIMIT, PATIENCE, Sockets, messages_wake

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what happens on connections")

#: Seconds that a sleep may take which nobody ends.
LONG = 5.0


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    return near, far


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = connected()
    with near, far:
        yield near, far


@pytest.fixture
def crowded() -> Iterator[None]:
    """All numbers of files below 1024 are taken, as in a process with a thousand connections or data files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    with open(os.devnull) as file:
        held = [os.dup(file.fileno())]
        while held[-1] < 1024:
            held.append(os.dup(file.fileno()))
    yield
    for number in held:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def sockets(pair: tuple[socket.socket, socket.socket]) -> Iterator[Sockets]:
    watching = Sockets()
    watching.clear()
    yield watching
    watching.close()


def test_what_arrives_wakes(pair: tuple[socket.socket, socket.socket], sockets: Sockets) -> None:
    timer = threading.Timer(0.05, pair[1].send, [b"!"])
    timer.start()
    started = time.monotonic()
    assert sockets.sleep(LONG)
    assert time.monotonic() - started < LONG / 2
    timer.join()


def test_what_arrives_wakes_a_process_with_a_thousand_open_files(
    crowded: None, pair: tuple[socket.socket, socket.socket], sockets: Sockets
) -> None:
    bell, ring = socket.socketpair()
    with bell, ring:
        assert bell.fileno() > 1024
        assert not sockets.sleep(0.001, bell)
        timer = threading.Timer(0.05, ring.send, [b"!"])
        timer.start()
        started = time.monotonic()
        assert sockets.sleep(LONG, bell)
        timer.join()
        bell.recv(1)
        timer = threading.Timer(0.05, pair[1].send, [b"!"])
        timer.start()
        assert sockets.sleep(LONG, bell)
        assert time.monotonic() - started < LONG / 2
        timer.join()


def test_nobody_sleeps_before_all_that_has_arrived_is_read(
    pair: tuple[socket.socket, socket.socket], sockets: Sockets
) -> None:
    near, far = pair
    far.send(b"!!")
    assert sockets.sleep(LONG)
    near.recv(1)
    assert sockets.sleep(LONG), "an MPI library may have read a part"
    near.recv(1)
    assert sockets.sleep(LONG), "what has just been read may complete what was looked at before"
    assert not sockets.sleep(0.01)


def test_nobody_sleeps_when_something_has_arrived_and_been_read_since_the_last_sleep(
    pair: tuple[socket.socket, socket.socket], sockets: Sockets
) -> None:
    near, far = pair
    for _ in range(3):
        far.send(b"!")
        near.recv(1)
        assert sockets.sleep(LONG)
        assert sockets.sleep(LONG)
        assert not sockets.sleep(0.01)


def test_what_arrives_while_a_rank_looks_once_more_is_not_missed(
    pair: tuple[socket.socket, socket.socket], sockets: Sockets
) -> None:
    near, far = pair
    far.send(b"!")
    assert sockets.sleep(LONG)
    near.recv(1)
    assert sockets.sleep(LONG)
    far.send(b"!")
    near.recv(1)
    assert sockets.sleep(LONG)
    assert sockets.sleep(LONG)
    assert not sockets.sleep(0.01)


def test_what_nobody_reads_keeps_no_rank_awake(pair: tuple[socket.socket, socket.socket], sockets: Sockets) -> None:
    pair[1].send(b"!")
    # The last one is for another look.
    slept = [sockets.sleep(0.01) for _ in range(2 * PATIENCE + 2)]
    assert all(slept[:-1])
    assert not slept[-1]


def test_what_is_read_slowly_keeps_a_rank_awake(pair: tuple[socket.socket, socket.socket], sockets: Sockets) -> None:
    near, far = pair
    far.send(bytes(3 * PATIENCE))
    for _ in range(3 * PATIENCE):
        assert sockets.sleep(LONG)
        near.recv(1)
    assert sockets.sleep(LONG)
    assert not sockets.sleep(0.01)


def test_another_file_wakes(sockets: Sockets) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert not sockets.sleep(0.01, one)
        other.send(b"!")
        assert sockets.sleep(LONG, one)
        one.recv(1)
        assert not sockets.sleep(0.01, one), "nothing has happened on the connections"


#: What another process does that a connection leads to: it reads all when it is told to.
READER = """
import socket, sys
far = socket.socket(fileno=int(sys.argv[1]))
sys.stdin.readline()
while far.recv(1 << 20):
    pass
"""


def test_room_to_send_more_wakes(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    command = [sys.executable, "-c", READER, str(far.fileno())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[far.fileno()], text=True) as reader:
        far.close()
        sockets = Sockets()
        near.setblocking(False)
        while select.select([], [near], [], 0.1)[1]:
            near.send(bytes(1 << 16))
        sockets.clear()
        slept = [sockets.sleep(0.01)]
        assert reader.stdin is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
        slept.append(sockets.sleep(LONG))
        reader.kill()
    sockets.close()
    assert slept == [False, True]


def test_connections_made_later_are_found_after_a_sleep_in_vain(sockets: Sockets) -> None:
    near, far = connected()
    with near, far:
        assert not sockets.sleep(2 * FIND_EVERY)
        sockets.clear()
        far.send(b"!")
        assert sockets.sleep(LONG)


def test_a_connection_that_takes_the_number_of_another_is_found(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    sockets = Sockets()
    later, other = connected()
    far.close()
    os.dup2(later.fileno(), near.fileno())
    later.close()
    with other, open(os.devnull):
        sockets.find()
        sockets.clear()
        other.send(b"!")
        assert sockets.sleep(LONG)
    sockets.close()


def test_what_is_watched_already_is_not_examined_again(
    sockets: Sockets, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[int] = []
    monkeypatch.setattr(sockets, "_watch", watched.append)
    with open(os.devnull):
        sockets.find()
    assert watched == []
    near, far = connected()
    with near, far:
        sockets.find()
        assert sorted(watched) == sorted([near.fileno(), far.fileno()])


def test_the_more_files_are_open_the_more_rarely_they_are_listed(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    def list_slowly(path: str) -> list[str]:
        listed.append(path)
        time.sleep(0.02)
        return ["0"]

    monkeypatch.setattr("mpidl.rma.sockets.os.listdir", list_slowly)
    sockets.find()
    for _ in range(5):
        assert not sockets.sleep(1.5 * FIND_EVERY)
    assert len(listed) == 1


def test_sleeps_in_vain_do_not_list_open_files_each_time(sockets: Sockets, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[None] = []
    monkeypatch.setattr(sockets, "find", lambda: found.append(None))
    for _ in range(5):
        assert not sockets.sleep(1e-6)
    assert len(found) < 5


def test_other_files_are_not_watched(sockets: Sockets) -> None:
    one, other = socket.socketpair()
    with one, other:
        sockets.find()
        sockets.clear()
        other.send(b"!")
        assert not sockets.sleep(0.01)


def test_a_sleep_that_nobody_ends_lasts_as_long_as_asked(sockets: Sockets) -> None:
    started = time.monotonic()
    assert not sockets.sleep(0.02)
    assert 0.02 <= time.monotonic() - started < LONG


class Lazy:
    """What rank 0 has of an MPI library that sends only when it is called again; rank 1 answers each message.

    Parameters
    ----------
    near, far : socket
        Between which answers come.
    watched : bool
        If not, they come by a network that the system can't watch.
    seconds : float
        After which an answer comes.
    unseen : int
        Number of answers, after the first, that come by another way and wake nobody.
    """

    rank = 0

    def __init__(self, near: socket.socket, far: socket.socket, watched: bool, seconds: float, unseen: int = 0) -> None:
        self._near, self._far, self._queued = near, far, False
        self._seconds, self._due = seconds, 0.0
        self._ways = iter([watched, *[False] * unseen, *[watched] * 9])
        self._watched = False

    def bcast(self, value: object) -> object:
        return value

    def send(self, value: bool, rank: int) -> None:
        self._queued = value

    def iprobe(self) -> bool:
        if self._queued:
            self._due, self._watched = time.monotonic() + self._seconds, next(self._ways)
            if self._watched:
                threading.Timer(self._seconds, self._far.send, [b"!"]).start()
        self._queued = False
        return False

    def irecv(self, source: int) -> Lazy:
        return self

    def test(self) -> tuple[bool, None]:
        self.iprobe()
        arrived = time.monotonic() >= self._due
        if arrived:
            self.wait()
        return arrived, None

    def wait(self) -> None:
        if self._watched:
            self._near.recv(1)


@pytest.mark.parametrize("seconds", [2e-3, 2.5 * LIMIT], ids=["at once", "late"])
@pytest.mark.parametrize("watched", [True, False])
def test_a_library_that_sends_when_it_is_called_again(
    pair: tuple[socket.socket, socket.socket], sockets: Sockets, watched: bool, seconds: float
) -> None:
    lazy: Any = Lazy(*pair, watched, seconds)
    near, far = connected()
    with near, far:
        far.send(b"!")
        sockets.find()
        assert messages_wake(lazy, 1, sockets) == watched, "what nobody reads wakes nobody"


@pytest.mark.parametrize(("unseen", "wakes"), [(1, True), (2, False)])
def test_one_message_need_not_wake(
    pair: tuple[socket.socket, socket.socket], sockets: Sockets, unseen: int, wakes: bool
) -> None:
    """It may arrive when the rank has just stopped sleeping."""
    lazy: Any = Lazy(*pair, True, 2e-3, unseen)
    assert messages_wake(lazy, 1, sockets) == wakes
