"""The state of a user's own object, such as a curriculum's stage, which each replica keeps for itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.errors import MpidlError, UsageError, kind_of, raised

#: Methods that return and restore a state.
METHODS = (("state", "load_state"), ("state_dict", "load_state_dict"))


def methods(
    given: Any, kinds: Sequence[tuple[str, str]] = METHODS
) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return the methods by which an object's state is read and restored; None if it has none of these kinds."""
    for names in kinds:
        read, restore = (getattr(given, name, None) for name in names)
        if callable(read) and callable(restore):
            return read, restore
    return None


class KeptState:
    """The state of an object with `methods`: a mapping of numbers and arrays by name.

    Attributes
    ----------
    first : dict of str to array
        The state before anything was read or trained.

    Raises
    ------
    UsageError
        The first state can't be read, or has anything but numbers and arrays.
    """

    def __init__(self, given: Any, what: str) -> None:
        found = methods(given)
        assert found is not None, "the object has no state"
        self._what = what
        self._read, self._restore = found
        try:
            self.first = self.state()
        except MpidlError as error:
            raise UsageError(str(error)) from error.__cause__

    def state(self) -> dict[str, np.ndarray]:
        """Return a copy of the state; MpidlError if it can't be read, or has anything but numbers and arrays."""
        try:
            found = self._read()
            state = {str(name): np.array(value) for name, value in found.items()} if hasattr(found, "items") else None
        except Exception as error:
            raise MpidlError(f"{self._what}: its state {raised(error)}") from error
        if state is None:
            raise MpidlError(f"{self._what}: its state is {kind_of(found)}, expected a mapping")
        for name, values in state.items():
            if values.dtype.kind not in "biufc":
                found = f"{values.dtype}" if values.ndim else kind_of(values.item())
                raise MpidlError(f"{self._what}: its state has {found} as {name}, expected numbers and arrays")
        return state

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore a state, with numbers as such; MpidlError if that fails."""
        try:
            self._restore({name: values.item() if not values.ndim else values.copy() for name, values in state.items()})
        except Exception as error:
            raise MpidlError(f"{self._what}: restoring its state {raised(error)}") from error
