"""``[tables]``: rows of a model's tables: how many are kept, which ids get one, and their rule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from msgspec import Meta

from mpidl import schema
from mpidl.rules import RULES, Adagrad, Rule
from mpidl.rules.tensors import TensorRule
from mpidl.schema import Checked, Count, Natural, Positive


@dataclass(frozen=True)
class TablesSection(Checked):
    """``[tables]``: the tables of a model, such as those of embeddings with ``sparse = true``.

    Attributes
    ----------
    max_rows : int, optional
        Most rows of a table, on all servers together: beyond these, the least recently updated ones are evicted.
    max_age : int, optional
        Number of a table's updates after which a row that none of them has changed is evicted.
    admission : int or float, optional
        An id gets a row at this number of updates with it, at most 255; below 1, at each of them with this probability.
        Before, it has its first values. By default, it gets one at the first.
    prefetch : int, optional
        Number of batches whose rows are fetched ahead, while others are computed, and lack the worker's last pushes. By
        default 1, and none for a single worker; always none if the run is deterministic.
    first_values : {"weights", "drawn"}
        "weights": the rows of a module's embedding begin with the values of its weight if that takes memory, and those
        of a model that was trained before go on. "drawn": with random values, as the rows of other tables.
    rule : str, optional
        Name of the update rule of rows; by default that of ``[server]``, or Adagrad if the algorithm takes none.
    rate : float, optional
        Learning rate of that rule; by default its own.
    """

    max_rows: Count | float | None = None
    max_age: Count | float | None = None
    admission: Annotated[int, Meta(ge=1, le=255)] | Annotated[float, Meta(gt=0, lt=1)] | None = None
    prefetch: Natural | None = None
    first_values: Literal["weights", "drawn"] = "weights"
    rule: str | None = None
    rate: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("max_rows", "max_age"):
            if (value := getattr(self, key)) is not None:
                object.__setattr__(self, key, schema.whole(value, key))
        if self.rule is not None:
            schema.choose(RULES, "rule", self.rule)

    def rule_beside(self, server: Rule | None) -> Rule:
        """Return the rule of rows, given that of ``[server]``."""
        default = server or Adagrad()
        if isinstance(default, TensorRule):
            default = default.other
        rule = default if self.rule in (None, default.name) else RULES[self.rule or ""]()
        return rule if self.rate is None else replace(rule, rate=self.rate)  # type: ignore[type-var]
