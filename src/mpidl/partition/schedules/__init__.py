"""Schedules of pipelines: in which order a stage computes its micro-batches."""

from mpidl.partition.schedules.gpipe import gpipe
from mpidl.partition.schedules.instructions import Schedule
from mpidl.partition.schedules.one_forward_one_backward import one_forward_one_backward
from mpidl.partition.schedules.zero_bubble import zero_bubble

__all__ = ["SCHEDULES", "Schedule"]

#: The schedules of a minibatch's gradient, by their names in configurations.
SCHEDULES: dict[str, Schedule] = {each.__name__: each for each in (gpipe, one_forward_one_backward, zero_bubble)}
