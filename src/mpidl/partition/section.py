"""A stage of a model of consecutive modules: what its rank holds, computes and exchanges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.partition.group import CutModel, PersistentMessage, RankGroup
from mpidl.partition.schedules import BackwardPart, Forward, MicroBatch
from mpidl.partition.sections import Sections, StageModel

#: Maximum number of axes of an array.
AXES = 15


class Sender:
    """Sends arrays (n, *shape), all of one shape for a sample and of one dtype, to another rank.

    Parameters
    ----------
    to : int
        The other rank.
    tag : int
        Tag of the arrays; the message with their shape has the next one.
    """

    def __init__(self, group: RankGroup, to: int, tag: int) -> None:
        self._group, self._to, self._tag = group, to, tag
        self._shape: PersistentMessage | None = None
        self._messages: dict[tuple[int, int], tuple[np.ndarray, PersistentMessage]] = {}

    def send(self, array: np.ndarray, slot: int = 0) -> None:
        """Begin to send a copy of an array, after the last one of this slot and length has been sent."""
        if self._shape is None:
            header = np.array([array.ndim, *array.shape, *[0] * (AXES - array.ndim)])
            self._shape = self._group.send(self._to, header, self._tag + 1)
            self._shape.start()
        key = len(array), slot
        if key not in self._messages:
            memory = np.empty_like(array, order="C")
            self._messages[key] = memory, self._group.send(self._to, memory, self._tag)
        memory, message = self._messages[key]
        message.wait()
        np.copyto(memory, array)
        message.start()

    def free(self) -> None:
        """Wait until everything has been sent, and free the messages."""
        for message in (self._shape, *(message for _, message in self._messages.values())):
            if message is not None:
                message.wait()
                message.free()


class Receiver:
    """Receives the arrays of a `Sender`, whose shape it learns from the first one."""

    def __init__(self, group: RankGroup, source: int, tag: int, dtype: Any) -> None:
        self._group, self._source, self._tag, self._dtype = group, source, tag, dtype
        self._shape: tuple[int, ...] | None = None
        self._messages: dict[tuple[int, int], tuple[np.ndarray, PersistentMessage]] = {}

    def receive(self, samples: int, slot: int = 0) -> np.ndarray:
        """Return the next array (samples, *shape), valid until the next one of this slot."""
        if self._shape is None:
            header = np.empty(AXES + 1, int)
            message = self._group.receive(self._source, header, self._tag + 1)
            message.start()
            message.wait()
            message.free()
            self._shape = tuple(header[2 : 1 + header[0]].tolist())
        key = samples, slot
        if key not in self._messages:
            memory = np.empty((samples, *self._shape), self._dtype)
            self._messages[key] = memory, self._group.receive(self._source, memory, self._tag)
        memory, message = self._messages[key]
        message.start()
        message.wait()
        return memory

    def free(self) -> None:
        """Free the messages."""
        for _, message in self._messages.values():
            message.free()


#: Tags of values, gradients, outputs and figures; the next ones are those of their shapes.
VALUES, GRADIENTS, OUTPUTS, FIGURES = 0, 2, 4, 6


class Section(CutModel):
    """The stage of one rank of a replica, for a model of consecutive modules that `sections_of` has cut.

    It has its own modules' parameters, receives values from the stage before, and sends gradients back. The inputs and
    targets of batches are arrays with samples along the first axis.

    Parameters
    ----------
    whole : CompleteModel
        The whole model: it has the initial values.
    rank : int
        The rank's number in its replica, and that of its stage.
    schedule : str
        A name in `mpidl.partition.schedules.SCHEDULES`.
    micro_batches : int
        Number of micro-batches in a minibatch. The loss is the mean over all samples; modules that depend on several
        samples, such as batch normalisation, see those of a micro-batch.

    Raises
    ------
    UsageError
        The schedule is unknown, or there are no micro-batches.
    """

    def __init__(self, whole: CompleteModel, plan: Sections, rank: int, *, schedule: str, micro_batches: int) -> None:
        super().__init__(whole, plan, rank, schedule, micro_batches)
        self.statistics, self.aliases, self.own = plan.statistics, whole.aliases, whole.own
        self._first, self._last = rank == 0, rank == plan.stages - 1
        framework, apart = import_module(whole.by_stages), schedule == "zero_bubble"
        self._stage: StageModel = framework.stage(whole, plan, rank, apart=apart)
        self._ends: dict[str, Any] = {}
        self._sums = 0.0, 0.0

    @property
    def parameters(self) -> Any:
        """The rank's part of the flat vector, (slice.size,)."""
        return self._stage.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._stage.parameters = vector

    def freeze(self, names: Sequence[str]) -> None:
        self._stage.freeze(names)

    def constants(self) -> Mapping[str, np.ndarray]:
        """Return the constants of the stage."""
        return self._stage.constants()

    def buffers(self) -> Mapping[str, np.ndarray]:
        """Return the buffers of the stage."""
        return self._stage.buffers()

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        self._stage.load_buffers(buffers)

    def state(self) -> Mapping[str, np.ndarray]:
        """Return the state of the stage."""
        return self._stage.state()

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the state of the stage."""
        self._stage.load_state(state)

    def bind(self, group: RankGroup) -> None:
        super().bind(group)
        last, dtype = self.plan.stages - 1, self.dtype
        if not self._last:
            self._ends["values to"] = Sender(group, self._rank + 1, VALUES)
            self._ends["gradients from"] = Receiver(group, self._rank + 1, GRADIENTS, dtype)
        if not self._first:
            self._ends["values from"] = Receiver(group, self._rank - 1, VALUES, dtype)
            self._ends["gradients to"] = Sender(group, self._rank - 1, GRADIENTS)
        if self._last and not self._first:
            self._ends["outputs to"], self._ends["figures to"] = Sender(group, 0, OUTPUTS), Sender(group, 0, FIGURES)
        if self._first and not self._last:
            self._ends["outputs from"] = Receiver(group, last, OUTPUTS, dtype)
            self._ends["figures from"] = Receiver(group, last, FIGURES, "float64")

    def unbind(self) -> None:
        for each in self._ends.values():
            each.free()
        self._ends.clear()
        super().unbind()

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch, on all ranks, and the gradient of the rank's parameters."""
        group = self._bound()
        self._stage.begin(batch)
        loss = 0.0
        for instruction, own in self._pipeline.order(len(batch.inputs)):
            if isinstance(instruction, Forward):
                loss += self._forward(batch, own)
            elif instruction.part is not None:
                self._backward(own, instruction.part)
        # The rank of the last stage has the loss.
        sums = np.array([loss, *(self._stage.loss_sums(loss, batch) if self._last else (0.0, 0.0))])
        group.sum(sums)
        loss, *of_batch = sums.tolist()
        self._sums = of_batch[0], of_batch[1]
        return loss, self._stage.end()

    def loss_sums(self, loss: float, batch: Batch) -> tuple[float, float]:
        return self._sums

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return the whole batch's evaluation on rank 0, and zeros without outputs on other ranks."""
        outputs = self._through(batch)
        if self._last:
            found = self._stage.judge(batch, outputs)
            if self._first:
                return found._replace(outputs=self._stage.host(outputs))
            self._ends["figures to"].send(np.array([found.sums(batch)]))
        answer = self._answer(batch, outputs)
        if not self._first:
            return Evaluation(0.0, 0)
        weight, loss, counted, correct, *terms = self._ends["figures from"].receive(1)[0].tolist()
        return Evaluation(loss, int(correct) if correct.is_integer() else correct, answer, weight, counted, terms)

    @property
    def terms(self) -> Sequence[str]:
        """The names of the terms of the last loss, if it has some, on the rank of the last stage."""
        return getattr(self._stage, "terms", ())

    def outputs(self, batch: Batch) -> Any:
        """Return the outputs for the samples of a batch on rank 0, and None on other ranks."""
        return self._answer(batch, self._through(batch))

    def _answer(self, batch: Batch, outputs: Any) -> np.ndarray | None:
        """Send the last stage's outputs to rank 0, which returns them."""
        if self._last and self._first:
            return self._stage.host(outputs)
        if self._last:
            self._ends["outputs to"].send(self._stage.host(outputs))
        if not self._first:
            return None
        found: np.ndarray = self._ends["outputs from"].receive(len(batch.inputs))
        return found

    def _forward(self, batch: Batch, own: MicroBatch) -> float:
        samples = slice(*own.samples)
        inputs = batch.inputs[samples] if self._first else self._receive("values from", own)
        outputs = self._stage.compute(inputs, own)
        if self._last:
            return self._stage.weighted_loss(batch.targets[samples], own)
        self._ends["values to"].send(outputs, own.slot)
        return 0.0

    def _backward(self, own: MicroBatch, part: BackwardPart) -> None:
        arrives = part != "weights" and not self._last
        given = self._stage.back(self._receive("gradients from", own) if arrives else None, own, part)
        if part != "weights" and not self._first:
            self._ends["gradients to"].send(given, own.slot)

    def _receive(self, end: str, own: MicroBatch) -> np.ndarray:
        found: np.ndarray = self._ends[end].receive(own.samples.size, own.slot)
        return found

    def _through(self, batch: Batch) -> Any:
        """Pass an undivided batch through the stages, and return this one's outputs."""
        self._bound()
        inputs = batch.inputs if self._first else self._ends["values from"].receive(len(batch.inputs))
        outputs = self._stage.test(inputs)
        if not self._last:
            self._ends["values to"].send(self._stage.host(outputs))
        return outputs
