"""A rank's side of a transfer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from mpidl.device import pinned
from mpidl.parameters.ranges import Box
from mpidl.partition.group import PersistentMessage, RankGroup
from mpidl.partition.transfer import Summand, Transfer


class IncomingValues(NamedTuple):
    """The handling of the values from one rank.

    Attributes
    ----------
    copies, additions : list of (array, array)
        Parts of the target, each with the values to copy or to add to it.
    wait : callable
        Waits for the message, if there is one.
    """

    copies: list[tuple[Any, Any]]
    additions: list[tuple[Any, Any]]
    wait: Callable[[], Any] = lambda: None


class MessageBuffers:
    """Memory for packed messages, by name, of the size of the largest one.

    Parameters
    ----------
    xp
        NumPy or CuPy. CuPy arrays have a second one on the host, through which they travel.
    """

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._arrays: dict[Hashable, tuple[Any, np.ndarray]] = {}

    def take(self, name: Hashable, size: int, dtype: Any) -> tuple[Any, np.ndarray]:
        """Return an array (size,) of the package, and the host's array that is sent or received."""
        found = self._arrays.get(name)
        if found is None or found[0].size < size:
            array = self._xp.empty(size, dtype)
            found = self._arrays[name] = array, array if self._xp is np else pinned(self._xp, (size,), dtype)
        array, message = found
        return array[:size], message[:size]


class PersistentTransfer:
    """A rank's side of a `Transfer` between fixed arrays: planned once, carried out any number of times.

    Contiguous parts are sent and received in place; others are packed.

    Parameters
    ----------
    xp
        NumPy or CuPy. CuPy arrays travel through the host's memory.
    sources, targets : sequence of array
        The arrays that hold the boxes of the rank's source and target.
    tag : int
        The same on all ranks, and different for transfers that run at the same time. A transfer has an even tag, and
        its adjoint the next one: they never run at the same time, and share memory.
    adds : bool
        Whether the sums are added to the targets rather than overwriting them.
    """

    def __init__(
        self, transfer: Transfer, group: RankGroup, xp: Any, sources: Sequence[Any], targets: Sequence[Any], tag: int,
        memory: MessageBuffers, adds: bool = False,
    ) -> None:  # fmt: skip
        self._group, self._xp, self._tag, self._memory = group, xp, tag, memory
        self._posted = self._taken = False
        self._packing: list[tuple[Any, Any]] = []
        self._downloads: list[tuple[np.ndarray, Any]] = []
        self._own: list[tuple[Any, Any]] = []
        self._arrivals: list[IncomingValues] = []
        self._receives: list[PersistentMessage] = []
        rank = group.rank
        source = list(zip(transfer.source[rank], sources, strict=True))
        target = list(zip(transfer.target[rank], targets, strict=True))
        self._sends = [
            self._sending(to, [_view(box, source) for _, box in boxes])
            for to, boxes in groupby(transfer.sends(rank), lambda each: each[0])
        ]
        summands, missing = transfer.summands(rank)
        if adds:
            summands, missing = [each._replace(copied=[], added=[each.box]) for each in summands], []
        self._missing = [_view(box, target) for box in missing]
        for giver, each in groupby(summands, lambda summand: summand.rank):
            if giver == rank:
                self._keep(list(each), source, target)
            else:
                self._receive(giver, list(each), target)

    @property
    def sends(self) -> bool:
        """Whether anything goes to other ranks."""
        return bool(self._sends)

    def start(self) -> None:
        """Begin to send the sources, which must not change before `complete`."""
        self._post()
        for packed, view in self._packing:
            self._xp.copyto(packed, view)
        for host, device in self._downloads:
            device.get(out=host)
        for message in self._sends:
            message.start()

    def take_own(self) -> None:
        """Overwrite the parts of the targets that don't depend on other ranks; otherwise `finish` does so."""
        self._post()
        for view in self._missing:
            view.fill(0)
        for view, values in self._own:
            self._xp.copyto(view, values)
        self._taken = True

    def finish(self) -> None:
        """Wait for the messages of other ranks, and overwrite the targets, or add to them."""
        if not self._taken:
            self.take_own()
        for arrival in self._arrivals:
            arrival.wait()
            for view, values in arrival.copies:
                self._xp.copyto(view, values)
            for view, values in arrival.additions:
                self._xp.add(view, values, out=view)
        self._posted = self._taken = False

    def complete(self) -> None:
        """Wait until all messages have been sent, so that the sources may change."""
        for message in self._sends:
            message.wait()

    def free(self) -> None:
        """Free the messages."""
        for message in (*self._sends, *self._receives):
            message.free()

    def _post(self) -> None:
        if not self._posted:
            self._posted = True
            for message in self._receives:
                message.start()

    def _sending(self, to: int, views: list[Any]) -> PersistentMessage:
        array = _joined(views) if self._xp is np else None
        if array is None:
            array, parts = self._packed(to, True, views, self._downloads)
            self._packing += zip(parts, views, strict=True)
        return self._group.send(to, array, self._tag)

    def _keep(self, own: list[Summand], source: _Held, target: _Held) -> None:
        copies, additions = (
            [(_view(box, target), _view(box, source)) for each in own for box in getattr(each, name)]
            for name in ("copied", "added")
        )
        # No lower rank gives the elements of copies: they needn't wait.
        self._own += copies
        self._arrivals.append(IncomingValues([], additions))

    def _receive(self, giver: int, summands: list[Summand], target: _Held) -> None:
        copies, additions = [], []
        uploads: list[tuple[np.ndarray, Any]] = []
        array = None
        if self._xp is np and not any(each.added for each in summands):
            array = _joined([_view(each.box, target) for each in summands])
        if array is None:
            views = [_view(each.box, target) for each in summands]
            array, parts = self._packed(giver, False, views, uploads)
            for each, part in zip(summands, parts, strict=True):
                packed = [(each.box, part)]
                copies += [(_view(box, target), _view(box, packed)) for box in each.copied]
                additions += [(_view(box, target), _view(box, packed)) for box in each.added]
        message = self._group.receive(giver, array, self._tag)
        self._receives.append(message)
        self._arrivals.append(IncomingValues(copies, additions, _then_upload(self._xp, message.wait, uploads)))

    def _packed(
        self, other: int, sends: bool, views: list[Any], staged: list[tuple[np.ndarray, Any]]
    ) -> tuple[np.ndarray, list[Any]]:
        """Return the message to or from another rank, and arrays of the views' shapes in it or in its device copy."""
        stops = list(accumulate((view.size for view in views), initial=0))
        name = self._tag // 2, other, sends == (self._tag % 2 == 0)
        array, message = self._memory.take(name, stops[-1], views[0].dtype)
        if self._xp is not np:
            staged.append((message, array))
        parts = [array[a:b].reshape(view.shape) for (a, b), view in zip(pairwise(stops), views, strict=True)]
        return message, parts


#: Boxes, each with the array that holds it.
_Held = Sequence[tuple[Box, Any]]


def _view(box: Box, held: _Held) -> Any:
    """Return a box as a view of the array that holds it."""
    return next(array[(*box.slices(own), ...)] for own, array in held if own.intersect(box) == box)


def _joined(views: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return arrays that are adjacent in memory as a single one; None if they aren't."""
    if not all(view.flags.c_contiguous for view in views):
        return None
    if any(one.ctypes.data + one.nbytes != other.ctypes.data for one, other in pairwise(views)):
        return None
    size = sum(view.size for view in views)
    return np.lib.stride_tricks.as_strided(views[0].reshape(-1), (size,), (views[0].itemsize,))


def _then_upload(xp: Any, wait: Callable[[], Any], uploads: list[tuple[np.ndarray, Any]]) -> Callable[[], Any]:
    if not uploads:
        return wait

    def both() -> None:
        wait()
        for host, device in uploads:
            device.set(host)
        # The next message may overwrite the host's memory.
        xp.cuda.get_current_stream().synchronize()

    return both
