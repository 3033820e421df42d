"""Loggers of runs: TensorBoard, and the interface of users' own."""

from __future__ import annotations

from collections.abc import Mapping

from mpidl.loggers.logger import Logger
from mpidl.loggers.tensorboard import TensorBoard

__all__ = ["LOGGERS", "Logger", "TensorBoard"]

#: The loggers that a configuration can name, each made without an argument.
LOGGERS: Mapping[str, type[Logger]] = {"tensorboard": TensorBoard}
