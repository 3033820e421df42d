"""The timeline of the stages of a pipeline, computed from durations alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mpidl.partition.schedules import (
    Backward,
    BackwardInputs,
    Forward,
    Instruction,
    PipelineSchedule,
)


class Durations(NamedTuple):
    """Seconds of a stage for a micro-batch: forward, and for the gradients of its inputs and of its weights."""

    forward: float
    backward_inputs: float
    backward_weights: float

    def of(self, instruction: Instruction) -> float:
        """Return the seconds of an instruction."""
        inputs, weights = self.backward_inputs, self.backward_weights
        return {None: self.forward, "both": inputs + weights, "inputs": inputs, "weights": weights}[instruction.part]


class Event(NamedTuple):
    """An instruction, and the seconds at which a stage begins and ends it."""

    instruction: Instruction
    start: float
    stop: float


@dataclass(frozen=True)
class Timeline:
    """The events of a minibatch on each stage, in order."""

    events: tuple[tuple[Event, ...], ...]

    @property
    def seconds(self) -> float:
        """Duration from the beginning of the first instruction to the end of the last."""
        return max(event.stop for stage in self.events for event in stage)

    @property
    def idle(self) -> tuple[float, ...]:
        """The seconds for which each stage idles: its bubble."""
        return tuple(self.seconds - sum(event.stop - event.start for event in stage) for stage in self.events)


def timeline(
    schedule: PipelineSchedule, micro_batches: int, durations: Sequence[Durations], transfer: float = 0.0
) -> Timeline:
    """Return the timeline of the stages of a pipeline.

    A stage carries out one instruction at a time, in order, as soon as its neighbours have sent what it needs.

    Parameters
    ----------
    micro_batches : int
        Number of micro-batches of a minibatch.
    durations : sequence of Durations
        One for each stage.
    transfer : float
        Seconds from one stage to the next, during which both can compute.

    Raises
    ------
    ValueError
        The schedule deadlocks.
    """
    stages = len(durations)
    orders = [list(schedule(stage, stages, micro_batches)) for stage in range(stages)]
    events: list[list[Event]] = [[] for _ in orders]
    stops: dict[tuple[int, type[Instruction], int], float] = {}
    known = -1
    while known < len(stops):
        known = len(stops)
        for stage, order in enumerate(orders):
            for instruction in order[len(events[stage]) :]:
                needed = _needs(stage, stages, instruction)
                if any(each not in stops for each in needed):
                    break
                now = events[stage][-1].stop if events[stage] else 0.0
                start = max([now, *(stops[each] + (transfer if each[0] != stage else 0.0) for each in needed)])
                stop = start + durations[stage].of(instruction)
                events[stage].append(Event(instruction, start, stop))
                stops[stage, _part(instruction), instruction.micro_batch] = stop
    for stage, order in enumerate(orders):
        if len(events[stage]) < len(order):
            raise ValueError(f"stage {stage} of {stages} never reaches {order[len(events[stage])]}: a deadlock")
    return Timeline(tuple(map(tuple, events)))


def _needs(stage: int, stages: int, instruction: Instruction) -> list[tuple[int, type[Instruction], int]]:
    """Return the stages and instructions that must end first."""
    number = instruction.micro_batch
    match instruction:
        case Forward():
            return [(stage - 1, Forward, number)] if stage else []
        case Backward() | BackwardInputs():
            later = [(stage + 1, BackwardInputs, number)] if stage + 1 < stages else []
            return [(stage, Forward, number), *later]
        case _:
            return [(stage, BackwardInputs, number)]


def _part(instruction: Instruction) -> type[Instruction]:
    """Return the part of an instruction for which others wait: of a `Backward`, only the inputs' gradients."""
    return BackwardInputs if isinstance(instruction, Backward) else type(instruction)
