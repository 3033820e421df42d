"""Changes of datasets: augmented and normalised inputs, and training samples held out for validation."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, Prepared, outside
from mpidl.data.dataset import Dataset, Split
from mpidl.data.ragged import Ragged
from mpidl.errors import UsageError
from mpidl.schema import Checked, Natural, NonNegative, Positive

#: Batches that are prepared ahead: a loader prepares one before it gathers the previous one.
AHEAD = 2


@dataclass(frozen=True)
class Augmentation(Checked):
    """``[data.augment]``: changes of each training image, applied in this order.

    Attributes
    ----------
    reflect : bool
        Swap left and right with probability 1/2.
    rotate : float
        Rotate about the centre by an angle uniform in [-rotate, rotate], in degrees; bilinear, zero outside the image.
    translate : int
        Shift vertically and horizontally by numbers of pixels uniform in [-translate, translate]; zero outside the
        image.
    noise : float
        Standard deviation of Gaussian noise added to each value, in units of the inputs (bytes are scaled to [0, 1]).
    """

    reflect: bool = False
    rotate: Annotated[float, msgspec.Meta(ge=0, le=180)] = 0.0
    translate: Natural = 0
    noise: NonNegative = 0.0


def augmented(dataset: Dataset, augmentation: Augmentation, seed: int) -> Dataset:
    """Return the dataset with its training split augmented, or `dataset` itself if `augmentation` does nothing.

    Raises
    ------
    UsageError
        The inputs aren't images (height, width) or (height, width, channels), or are too small.
    """
    if augmentation == Augmentation():
        return dataset
    shape = dataset.input_shape
    if shape is None or len(shape) not in (2, 3):
        expected = "images (height, width) or (height, width, channels)"
        raise UsageError(f"data.augment: inputs of shape {shape or 'unknown'}, expected {expected}")
    smaller = min(shape[:2])
    if augmentation.translate >= smaller:
        found = f"{augmentation.translate} pixels"
        raise UsageError(f"data.augment.translate: {found}, expected less than the images' {smaller}")
    return replace(dataset, train=Augmented(dataset.train, augmentation, seed))


class Augmented(Split):
    """Another split's images, augmented: the result depends only on the seed, the epoch and the image's index.

    A background thread carries out `prefetch` and `prepare`. The wrapped split, of images larger than
    ``augmentation.translate``, is used by one thread at a time, in the order of the calls.
    """

    def __init__(self, split: Split, augmentation: Augmentation, seed: int) -> None:
        from mpidl.data.distortion import distort

        self.samples, self.contiguous = split.samples, split.contiguous
        self._split, self._augmentation, self._distort = split, augmentation, distort
        self._seed = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        self._free: dict[int, list[Batch]] = {}
        self._lent: dict[int, Batch] = {}
        self._prepared: Prepared[Future[Batch]] = Prepared(AHEAD)
        self._thread: ThreadPoolExecutor | None = None
        self._last: Future[Any] | None = None

    def load(self) -> None:
        self._wait()
        self._split.load()
        nothing = np.empty((0, 1, 1), np.float32)
        self._augment(nothing, nothing, np.empty(0, np.int64), 0)  # compiles, or loads from Numba's cache

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        self._submit(self._split.prefetch, indices)

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        """Start to gather and augment a batch in the background; the last two batches are kept."""
        self._prepared.add(indices, epoch, self._submit(self._make, indices, epoch))

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        return self._split.labels(start, stop)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        if len(indices) in self._lent:
            self._free[len(indices)].append(self._lent.pop(len(indices)))
        prepared = self._prepared.claim(indices, epoch)
        if prepared is None:
            self._wait()
        batch = self._make(indices, epoch) if prepared is None else prepared.result()
        self._lent[len(indices)] = batch
        return batch

    def _make(self, indices: NDArray[np.int64], epoch: int) -> Batch:
        inputs, targets, _, weight = self._split.gather(indices)
        inputs = inputs if inputs.dtype.kind == "f" else inputs.astype(np.float32)
        free = self._free.setdefault(len(indices), [])
        batch = free.pop() if free else Batch(np.empty_like(inputs), np.empty_like(targets))
        np.copyto(batch.targets, targets)
        self._augment(inputs, batch.inputs, indices, epoch)
        return batch._replace(weight=weight)

    def _augment(self, inputs: NDArray[Any], out: NDArray[Any], indices: NDArray[np.int64], epoch: int) -> None:
        images = inputs.shape if inputs.ndim == 4 else (*inputs.shape, 1)
        does = self._augmentation
        self._distort(
            inputs.reshape(images), out.reshape(images), indices, self._seed, epoch,
            does.reflect, does.translate, float(does.rotate), float(does.noise),
        )  # fmt: skip

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="augment")
        self._last = self._thread.submit(function, *arguments)
        return self._last

    def _wait(self) -> None:
        """Wait until the background thread is idle."""
        if self._last is not None:
            wait([self._last])


@dataclass(frozen=True)
class Normalisation(Checked):
    """``[data.normalise]``: all inputs become (inputs - mean) / std, after augmentation.

    Attributes
    ----------
    mean, std : float, or list with one float per channel
        In units of the inputs (bytes are scaled to [0, 1]).
    """

    mean: float | list[float] = 0.0
    std: Positive | list[Positive] = 1.0


def normalised(dataset: Dataset, normalisation: Normalisation) -> Dataset:
    """Return the dataset with its inputs normalised, or `dataset` itself if `normalisation` does nothing.

    Raises
    ------
    UsageError
        The number of means or deviations is neither 1 nor that of the channels.
    """
    if normalisation == Normalisation():
        return dataset
    if dataset.input_shape is None:
        raise UsageError("data.normalise: samples of several shapes, expected arrays of one shape")
    if not dataset.input_shape and isinstance(dataset.train.gather(np.zeros(1, np.int64)).inputs, Ragged):
        raise UsageError("data.normalise: bags of ids, expected arrays of numbers")
    channels = dataset.input_shape[-1] if dataset.input_shape else 1
    for key, value in (("mean", normalisation.mean), ("std", normalisation.std)):
        if isinstance(value, list) and len(value) != channels:
            raise UsageError(f"data.normalise.{key}: {len(value)} numbers, expected 1, or {channels}: one per channel")
    return dataset.changed(lambda split: Normalised(split, normalisation))


class Normalised(Split):
    """Another split's samples, normalised."""

    def __init__(self, split: Split, normalisation: Normalisation) -> None:
        self.samples, self.contiguous, self.lookahead = split.samples, split.contiguous, split.lookahead
        self.chunk, self._split = split.chunk, split
        self._mean = np.array(normalisation.mean, np.float32)
        self._factor = (1 / np.array(normalisation.std)).astype(np.float32)

    def load(self) -> None:
        self._split.load()

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        self._split.prefetch(indices)

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        self._split.prepare(indices, epoch)

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        return self._split.labels(start, stop)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        batch = self._split.gather(indices, epoch)
        if batch.inputs.dtype.kind != "f":
            batch = batch._replace(inputs=batch.inputs.astype(np.float32))
        np.subtract(batch.inputs, self._mean, out=batch.inputs)
        np.multiply(batch.inputs, self._factor, out=batch.inputs)
        return batch


#: Separates the choice of validation samples from the order of the data, which has the same seed.
STREAM = 0x76616C


class Subset(Split):
    """The samples of another split with these indices, (samples,) of int64. Nothing else gathers from that split."""

    def __init__(self, split: Split, chosen: NDArray[np.int64]) -> None:
        self.samples, self.contiguous, self.chunk = len(chosen), split.contiguous, split.chunk
        self.lookahead = split.lookahead
        self._split, self._chosen = split, chosen

    def load(self) -> None:
        self._split.load()

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        self._split.prefetch(self._chosen[indices])

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        self._split.prepare(self._chosen[indices], epoch)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        if indices.min() < 0:
            raise outside(indices, 0, self.samples)
        return self._split.gather(self._chosen[indices], epoch)

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        of_all = self._split.labels(0, self._split.samples)
        return None if of_all is None else of_all[self._chosen[start:stop]]

    def copy(self) -> Subset:
        return Subset(self._split.copy(), self._chosen)

    def as_integers(self) -> Subset:
        return Subset(self._split.as_integers(), self._chosen)

    def as_double(self) -> Subset:
        return Subset(self._split.as_double(), self._chosen)


def held_out(dataset: Dataset, share: float | None, portion: int, seed: int) -> Dataset:
    """Return the dataset with a share of its training samples as the validation split, or itself if `share` is None.

    The samples are chosen at random: whole portions, of this number of samples, where neighbours are read together.

    Raises
    ------
    UsageError
        The data already have a validation split, or too few training samples, for one of their owners for instance.
    """
    if share is None:
        return dataset
    if dataset.validation is not None:
        raise UsageError(f"data.validation: {share:g}, but the data have a validation split of their own")
    if dataset.order is not None:
        raise UsageError(
            f"data.validation: {share:g}, but the data have a sampler for all training samples, expected "
            "mpidl.Indexed(validation=...)"
        )
    train, samples = dataset.train, dataset.train.samples
    if samples < 2:
        raise UsageError(f"data.validation: {share:g} of {samples} training sample, expected at least 2 samples")
    chosen = _chosen(samples, share, portion if train.contiguous else 1, seed)
    rest = np.flatnonzero(~chosen)
    owners = dataset.owners
    if owners is not None:
        counts = np.bincount(owners[rest], minlength=owners.max() + 1)
        if not counts.all():
            raise UsageError(f"data.validation: {share:g} takes all training samples of worker {counts.argmin()}")
        owners = owners[rest]
    held_out = Subset(train.copy(), np.flatnonzero(chosen))
    return replace(dataset, train=Subset(train, rest), validation=held_out, owners=owners)


def _chosen(samples: int, share: float, block: int, seed: int) -> NDArray[np.bool_]:
    """Return a mask of random samples: blocks of neighbours if there are enough for the share, else single ones."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM,)))
    chosen = np.zeros(samples, bool)
    blocks = samples // block
    if not 0 < round(share * blocks) < blocks:
        block, blocks = 1, samples
    count = min(max(1, round(share * blocks)), blocks - 1)
    # The whole blocks: a shorter one at the end of the data stays there.
    chosen[: blocks * block].reshape(blocks, block)[random.permutation(blocks)[:count]] = True
    return chosen
