"""Exchange of mirrors' files between nodes, by TCP: ranks that compute make no progress in MPI.

On each node, one rank has a `Keeper`, whose threads answer requests of the other nodes. Both sides of a connection
show that they know the job's key.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

import msgspec

from mpidl.errors import MpidlError, as_line
from mpidl.mirrors.memory import keep_only
from mpidl.paths import open_regular, regular
from mpidl.storage.files import MEMBER
from mpidl.storage.integrity import PIECE
from mpidl.storage.writer import Described, check_room, describe_file

#: Seconds in which a connection is made; and after which one to a host that is silent is given up.
CONNECTING, SILENT = 5.0, 30
#: The ioctl for an interface's IPv4 address, the bytes of its argument, and where the address is in it.
SIOCGIFADDR, REQUEST, ADDRESS = 0x8915, 256, slice(20, 24)
#: What a connection raises.
BROKEN = (OSError, EOFError, AuthenticationError, msgspec.MsgspecError)


class Address(msgspec.Struct, frozen=True):
    """Where the keeper of a node is reached: the node's number, its names and addresses, and the port."""

    node: int
    hosts: tuple[str, ...]
    port: int


class NodeMemory:
    """The mirrors in this node's memory, for this and other nodes; `key` is the job's."""

    def __init__(self, place: Path, key: bytes) -> None:
        self._place, self._key = place, key

    def describe(self, mirror: str) -> dict[str, Described]:
        """Return what an index has of each complete file of a mirror here."""
        found = {}
        with suppress(FileNotFoundError):
            for path in (self._place / mirror).iterdir():
                if MEMBER.fullmatch(path.name):
                    with suppress(OSError):  # It isn't complete.
                        found[path.name] = describe_file(path)
        return found

    def fetch(self, mirror: str, source: Address, names: Sequence[str]) -> None:
        """Copy files of a mirror from another node; raise an error of `BROKEN`, or MpidlError if there is no room."""
        directory = self._place / mirror
        directory.mkdir(0o700, exist_ok=True)
        with Remote(source, self._key) as other:
            for name in names:
                if not (directory / name).exists():
                    other.copy(mirror, name, directory)

    def keep_only(self, mirror: str) -> None:
        """Remove all mirrors but one."""
        keep_only(self._place, mirror)

    def open(self, mirror: str, name: str) -> Any:
        """Open a file of a mirror for reading."""
        return open_regular(self._place / mirror / name)


class Keeper:
    """Lets other nodes exchange files with this node's memory, until it is closed.

    `address` is where; `node` is this node's number.
    """

    def __init__(self, node: int, memory: NodeMemory, key: bytes) -> None:
        self._node, self._memory, self._key = node, memory, key
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._socket = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        self.address = Address(node, (socket.gethostname(), *_addresses()), self._socket.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except ConnectionAbortedError:
                continue
            except OSError:  # It has been closed.
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Answer the requests that come through a connection."""
        with suppress(*BROKEN), connection, Connection(connection.dup().detach()) as messages:
            _impatient(connection)
            deliver_challenge(messages, self._key)
            answer_challenge(messages, self._key)
            _patient(connection)
            messages.send_bytes(msgspec.msgpack.encode(self._node))
            while True:
                verb, mirror, *arguments = msgspec.msgpack.decode(messages.recv_bytes())
                if verb == "copy":
                    with self._memory.open(mirror, *arguments) as file:
                        messages.send_bytes(msgspec.msgpack.encode(file.seek(0, 2)))
                        connection.sendfile(file)
                    continue
                messages.send_bytes(msgspec.msgpack.encode(self._done(verb, mirror, arguments)))

    def _done(self, verb: str, mirror: str, arguments: Sequence[Any]) -> tuple[Any, str | None]:
        """Return what a request returns, and the line of an error that it met."""
        memory = self._memory
        try:
            match verb:
                case "describe":
                    return memory.describe(mirror), None
                case "fetch":
                    memory.fetch(mirror, msgspec.convert(arguments[0], Address), arguments[1])
                case "keep_only":
                    memory.keep_only(mirror)
        except (MpidlError, *BROKEN) as error:
            return None, f"{socket.gethostname()}: {as_line(error)}"
        return None, None


class Remote:
    """The mirrors in another node's memory; a context. Its methods are those of `NodeMemory`, and raise `BROKEN`."""

    def __init__(self, address: Address, key: bytes) -> None:
        self._address, self._key = address, key

    def __enter__(self) -> Remote:
        failed: Exception | None = None
        for host in self._address.hosts:
            try:
                self._connect(host)
            except BROKEN as error:
                failed = failed or error
            else:
                return self
        raise MpidlError(f"{self._address.hosts[0]} can't be reached at port {self._address.port}: {failed}")

    def __exit__(self, *details: object) -> None:
        self._messages.close()
        self._socket.close()

    def _connect(self, host: str) -> None:
        opened = socket.create_connection((host, self._address.port), timeout=CONNECTING)
        messages = Connection(opened.dup().detach())
        try:
            _impatient(opened)
            answer_challenge(messages, self._key)
            deliver_challenge(messages, self._key)
            _patient(opened)
            if msgspec.msgpack.decode(messages.recv_bytes()) != self._address.node:
                raise OSError(f"another node answers at {host}")
        except BROKEN:
            messages.close()
            opened.close()
            raise
        self._socket, self._messages = opened, messages

    def describe(self, mirror: str) -> dict[str, Described]:
        return msgspec.convert(self._ask("describe", mirror), dict[str, Described])

    def fetch(self, mirror: str, source: Address, names: Sequence[str]) -> None:
        self._ask("fetch", mirror, source, names)

    def keep_only(self, mirror: str) -> None:
        self._ask("keep_only", mirror)

    def copy(self, mirror: str, name: str, directory: Path) -> None:
        """Copy a file into a directory of this node."""
        self._messages.send_bytes(msgspec.msgpack.encode(("copy", mirror, name)))
        size = self._received()
        check_room(directory, size)
        with open(directory / name, "xb", buffering=0, opener=partial(regular, mode=0o600)) as file:
            piece = memoryview(bytearray(min(size, PIECE)))
            while size:
                count = self._socket.recv_into(piece[: min(size, PIECE)], 0, socket.MSG_WAITALL)
                if not count:
                    raise self._ended()
                rest = piece[:count]
                while rest:
                    rest = rest[file.write(rest) :]
                size -= count

    def _ask(self, *request: Any) -> Any:
        self._messages.send_bytes(msgspec.msgpack.encode(request))
        answer, error = self._received()
        if error is not None:
            raise MpidlError(error)
        return answer

    def _received(self) -> Any:
        try:
            return msgspec.msgpack.decode(self._messages.recv_bytes())
        except EOFError:
            raise self._ended() from None

    def _ended(self) -> MpidlError:
        return MpidlError(f"{self._address.hosts[0]} has ended the connection")


def _impatient(connection: socket.socket) -> None:
    """Time out soon: the other side has not shown yet that it knows the key."""
    connection.settimeout(None)
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", int(CONNECTING), 0))


def _patient(connection: socket.socket) -> None:
    """Wait for an answer for as long as the other host is there."""
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", 0, 0))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options: Mapping[int, int] = {
        socket.TCP_KEEPIDLE: SILENT // 3,
        socket.TCP_KEEPINTVL: SILENT // 6,
        socket.TCP_KEEPCNT: 4,
        socket.TCP_USER_TIMEOUT: SILENT * 1000,
    }
    for option, value in options.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _addresses() -> list[str]:
    """Return this host's IPv4 addresses, for others that can't resolve its name."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack(f"{REQUEST}s", name.encode()[:15])
                found.append(socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[ADDRESS]))
    return [each for each in found if not each.startswith("127.")]
