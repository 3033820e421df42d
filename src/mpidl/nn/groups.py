"""Groups of parameters: tensors, selected by their names, with training settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any

from msgspec import Meta

from mpidl.data.batch import Batch
from mpidl.errors import UsageError, quoted
from mpidl.nn.losses import ADDING, Regularisation
from mpidl.nn.model import CompleteModel, Evaluation, PlacedModel
from mpidl.parameters.layout import Layout, Slice
from mpidl.parameters.ranges import Range
from mpidl.rules.segments import Segment
from mpidl.schema import Checked, NonNegative

#: Maximum number of names in an error.
NAMES = 5


@dataclass(frozen=True)
class Group(Checked):
    """``[[model.group]]``: parameters with training settings of their own.

    A tensor belongs to the first group whose pattern matches its name.

    Attributes
    ----------
    match : str
        Pattern of tensors' names, such as ``"*.bias"`` or ``"0-dense.*"``; ``/`` in a name counts as ``.``.
    rate : float
        Factor of learning rates.
    weight_decay : float, optional
        Replaces the rule's own weight decay; for rules without one, it is L2 weight decay in the gradient.
    frozen : bool
        Whether these parameters never change.
    matrix : bool, optional
        Whether a rule of whole matrices, such as ``muon``, updates them; by default hidden matrices alone.
    """

    match: Annotated[str, Meta(min_length=1)]
    rate: NonNegative = 1.0
    weight_decay: NonNegative | None = None
    frozen: bool = False
    matrix: bool | None = None


def group_of(groups: Sequence[Group], name: str) -> Group | None:
    """Return the group of a tensor of this name, or None."""
    return next((group for group in groups if _matches(group, name)), None)


def frozen_names(groups: Sequence[Group], layout: Layout) -> list[str]:
    """Return the names of the tensors that are frozen."""
    return [name for name in layout.shapes if (group := group_of(groups, name)) is not None and group.frozen]


def statistics_in(layout: Layout, model: CompleteModel) -> Sequence[Range]:
    """Return the ranges of a model's statistics in a vector of this layout, which has the model's tensors."""
    if layout == model.layout:
        return model.statistics
    trained = {part.name for part in trained_parts(model.layout, model.statistics)}
    return [part.range for part in layout if part.name not in trained]


def trained_parts(layout: Layout, statistics: Sequence[Range]) -> list[Slice]:
    """Return the parts of a layout without statistics."""
    return [part for part in layout if not any(part.range.intersect(each) for each in statistics)]


def segments_of(groups: Sequence[Group], layout: Layout, statistics: Sequence[Range]) -> list[Segment]:
    """Return the segments of groups in a vector with a layout and ranges of statistics, which are in no segment.

    Raises
    ------
    UsageError
        A group matches no parameters, or none are left to train.
    """
    parts = trained_parts(layout, statistics)
    for number, group in enumerate(groups):
        if not any(_matches(group, part.name) for part in parts):
            names = [_dotted(name) for name in dict.fromkeys(part.name for part in parts)]
            shown = ", ".join(names[:NAMES]) + ", ..." * (len(names) > NAMES)
            raise UsageError(f"model.group[{number}].match: {quoted(group.match)} matches none of {shown}")
    found = [(part.range, own) for part in parts if (own := group_of(groups, part.name)) is not None]
    if len(found) == len(parts) and all(own.frozen for _, own in found):
        raise UsageError("model.group: every parameter is frozen, expected some to train")
    segments: list[Segment] = []
    for range, own in found:
        segment = Segment(range, own.rate, own.weight_decay, own.frozen)
        if segments and segments[-1].range.stop == range.start and segments[-1][1:] == segment[1:]:
            segment = segment._replace(range=Range(segments.pop().range.start, range.stop))
        segments.append(segment)
    return segments


def _matches(group: Group, name: str) -> bool:
    return fnmatchcase(_dotted(name), _dotted(group.match))


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def weights_of(model: CompleteModel) -> list[str]:
    """Return the names of the tensors that ``model.l2`` counts as weights.

    They are those with at least two axes, biases left out, or all tensors if none has two.
    """
    parts = trained_parts(model.layout, model.statistics)
    wide = [part.name for part in parts if len(part.shape) > 1 and not part.name.endswith("bias")]
    return wide or list(model.layout.shapes)


class Penalised(PlacedModel):
    """A model with penalties, frozen parameters and clipping that it doesn't apply.

    The loss includes half of a segment's weight decay times the sum of its squared parameters. The gradient of frozen
    parameters is 0; rates have no meaning. If the norm of the gradient in the ranges `trained` is larger than `clip`,
    they are scaled down.

    `total` returns the sum of a number over the ranks that compute the model together.
    """

    def __init__(
        self, model: PlacedModel, segments: Sequence[Segment], clip: float | None = None,
        trained: Sequence[Range] = (), total: Callable[[float], float] = float,
    ) -> None:  # fmt: skip
        self._model, self._total, self._trained = model, total, trained
        self._frozen = [slice(*each.range) for each in segments if each.frozen]
        self._penalties = [
            (Regularisation(l2=each.weight_decay), [each.range])
            for each in segments
            if each.weight_decay and not each.frozen
        ]
        self._clipping = Regularisation(clip=clip)
        if self._penalties:
            ADDING.warm(model.parameters.dtype)

    @property
    def parameters(self) -> Any:
        return self._model.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._model.parameters = vector

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        loss, gradient = self._model.loss_and_gradient(batch)
        penalty = sum(each.penalise(part, self.parameters, gradient) for each, part in self._penalties)
        for frozen in self._frozen:
            gradient[frozen] = 0
        if self._clipping.clip is not None:
            squared_norm = self._total(self._clipping.squared_norm(self._trained, gradient))
            self._clipping.clip_norm(self._trained, gradient, squared_norm)
        return loss + self._total(penalty), gradient

    def evaluate(self, batch: Batch) -> Evaluation:
        return self._model.evaluate(batch)

    def requests(self, *replica: Any) -> Any:
        return self._model.requests(*replica)

    @property
    def evaluated(self) -> Any:  # type: ignore[override]
        return self._model.evaluated

    def copy_to_host(self) -> None:
        self._model.copy_to_host()
