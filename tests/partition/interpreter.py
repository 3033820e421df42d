"""Carries out the steps of cut layers on whole arrays: each rank's layers on slices of them, summands added up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mpidl.nn import kernels
from mpidl.nn.layers.workspace import Workspace
from mpidl.parameters import Box


class Together:
    """The sums of ranks that are threads."""

    def __init__(self, count):
        self._barrier, self._arrays = threading.Barrier(count), {}

    def of(self, rank):
        """Return a rank's side."""
        group = type("Rank", (), {"rank": rank})()

        def total(array):
            self._arrays[rank] = array.copy()
            self._barrier.wait()
            result = np.sum([self._arrays[each] for each in sorted(self._arrays)], axis=0)
            self._barrier.wait()
            array[...] = result

        group.sum = total
        return group


class Work:
    """What a rank has for a step: views of its boxes' copies."""

    def __init__(self, step, rank, samples, tensors, group, training):
        self.layer = step.layers[rank]
        taken = [taken[rank] for taken in step.taken if taken[rank] is not None]
        self.operands = [operand for operand, taken in enumerate(step.taken) if taken[rank] is not None]
        self.boxes = [part.of(samples) for part in taken]
        self.given, self.tensors = step.given[rank].of(samples), step.tensors[rank]
        own = step.samples(rank, samples)
        parameters = {key: tensors[f"{step.name}/{key}"][box.slices(whole(tensors[f"{step.name}/{key}"]))].copy()
                      for key, box in self.tensors.items()}  # fmt: skip
        assert {key: value.shape for key, value in parameters.items()} == self.layer.parameters(
            *(part.box.shape for part in taken)
        )
        self.gradients = {key: np.full_like(value, np.nan) for key, value in parameters.items()}
        shapes = [part.box.shape for part in taken]
        shape = self.layer.output_shape(*shapes)
        assert shape == step.given[rank].box.shape
        buffers = {
            key: np.empty((own, *each.shape) if each.per_sample else each.shape, each.dtype or "float64")
            for key, each in self.layer.buffers(*shapes).items()
        }
        self.work = Workspace(np, kernels.of(np), parameters, self.gradients, buffers, training, lambda: (0, 0, 0, 0))
        self.work.group = group
        self.outputs, self.output_gradient = np.empty((own, *shape)), np.empty((own, *shape))
        self.shapes = [(own, *shape) for shape in shapes]

    def forward(self, values):
        """Return the outputs."""
        slices = [
            np.ascontiguousarray(values[k][box.slices(whole(values[k]))])
            for k, box in zip(self.operands, self.boxes, strict=True)
        ]
        self.inputs = slices if self.layer.joins else slices[0]
        self.layer.forward(self.work, self.inputs, self.outputs)
        return self.outputs.copy()

    def backward(self, gradient):
        """Return the gradient with respect to each operand's box."""
        self.output_gradient[...] = gradient
        found = [np.full(shape, np.nan) for shape in self.shapes]
        self.layer.backward(
            self.work, self.inputs, self.outputs, self.output_gradient, found if self.layer.joins else found[0]
        )
        return found


def whole(array):
    return Box.whole(array.shape)


class Interpreter:
    """Steps on whole arrays.

    Attributes
    ----------
    values : list of array (samples, *shape)
        The operands, and then each step's value.
    """

    def __init__(self, steps, operands, tensors, training=True):
        self.steps, self.values, self.tensors = steps, list(operands), tensors
        self.samples, self._works = len(operands[0]), []
        for step in steps:
            ranks = [rank for rank in range(len(step.layers)) if step.samples(rank, self.samples)]
            group = Together(len(ranks)) if step.together and training else None
            works = [
                Work(step, rank, self.samples, tensors, group and group.of(number), training)
                for number, rank in enumerate(ranks)
            ]
            taken = [self.values[operand] for operand in step.operands]
            shape = np.max([part.box.ranges for part in step.given if part is not None], axis=0)[:, 1]
            value = np.zeros((self.samples, *shape))
            for work, outputs in zip(works, at_once(Work.forward, works, [taken] * len(works)), strict=True):
                value[work.given.slices(whole(value))] += outputs
            self.values.append(value)
            self._works.append(works)

    def backward(self, gradient):
        """Return the gradients of the values, and of the tensors by name."""
        gradients = [np.zeros_like(value) for value in self.values]
        gradients[-1] += gradient
        tensors = {name: np.zeros_like(value) for name, value in self.tensors.items()}
        for number, (step, works) in reversed(list(enumerate(zip(self.steps, self._works, strict=True)))):
            above = gradients[len(gradients) - len(self.steps) + number]
            own = [above[work.given.slices(whole(above))] for work in works]
            for work, found in zip(works, at_once(Work.backward, works, own), strict=True):
                for operand, box, part in zip(work.operands, work.boxes, found, strict=True):
                    target = gradients[step.operands[operand]]
                    target[box.slices(whole(target))] += part
                for key, box in work.tensors.items():
                    target = tensors[f"{step.name}/{key}"]
                    target[box.slices(whole(target))] += work.gradients[key]
        return gradients, tensors


def at_once(function, works, arguments):
    """Call a function for each rank, in threads, since ranks may wait for each other."""
    with ThreadPoolExecutor(max(1, len(works))) as pool:
        return list(pool.map(function, works, arguments))
