"""Notes on a job for its user: settings that are seldom meant, and how its model is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpidl.config import Config
from mpidl.data import Split
from mpidl.data.nested import WITHOUT
from mpidl.partition.plan import Plan, rounded_otherwise
from mpidl.partition.sections import Sections

#: Names that a line lists.
NAMES = 5


def notes_on(config: Config, train: Split) -> list[str]:
    """Return a line for each setting that works with the training data, but is seldom meant."""
    return [*_on_rule(config), *_on_data(config, train)]


def _on_rule(config: Config) -> list[str]:
    algorithm, rule = config.algorithm, config.rule
    default = algorithm.default_rule
    if not algorithm.outer or rule is None or default is None or isinstance(rule, type(default)):
        return []
    return [f"server.rule: {rule.name} is the outer rule of {algorithm.name} now, {default.name} its own"]


def _on_data(config: Config, train: Split) -> list[str]:
    data = config.data
    if data.keep != "files" or data.portion % train.chunk == 0:
        return []
    if not data.by_portions(train):
        return [f"data.shuffle: 'samples', but the files are read in chunks of {train.chunk}: use 'portion'"]
    return [
        f"data.portion: {data.portion}, but the files are read in chunks of {train.chunk} samples, some of them "
        f"for two portions: use a multiple of {train.chunk}"
    ]


def notes_on_digests(data: Mapping[str, str]) -> list[str]:
    """Return a line on what the checksums of a description of data leave out."""
    left_out = {kind for text in data.values() for kind in text.partition(WITHOUT)[2].split(", ")} - {""}
    if not left_out:
        return []
    return [f"data: checksums leave out {_listed(sorted(left_out))}: ranks and resumed runs may differ in these"]


def notes_on_cut(config: Config, plan: Plan | Sections) -> list[str]:
    """Return lines on how a replica is cut and, of a deterministic run, which bits that changes."""
    if isinstance(plan, Sections):
        runs = ", ".join(f"{run.start}-{run.stop - 1}" if run.size > 1 else f"{run.start}" for run in plan.runs)
        return [f"each replica is cut into {plan.stages} stages: modules {runs}", *_on_bits(config, [])]
    by_layer = {step.name: step.cut for step in reversed(plan.steps)}
    cuts = [f"{name} by {cut}" for name, cut in reversed(by_layer.items())]
    in_stages = f" in {plan.stages} stages" if plan.stages > 1 else ""
    note = f"each replica is cut over {plan.partitions} ranks{in_stages}: {_listed(cuts)}"
    return [note, *_on_bits(config, rounded_otherwise(plan, clips=config.model.clip is not None))]


def _on_bits(config: Config, layers: Sequence[str]) -> list[str]:
    """Return a line on the bits of a deterministic run, given the layers in which sums are rounded otherwise."""
    topology = config.topology
    where = [*(["micro-batches"] if topology.pipeline["micro_batches"] > 1 else []), *layers]
    if not (config.run.deterministic and where):
        return []
    return [
        f"run.deterministic: the bits are those of any run of {topology.partitions} partitions; of other numbers "
        f"of them not, since sums are rounded otherwise in {_listed(where)}"
    ]


def _listed(texts: Sequence[str]) -> str:
    """Return texts as one, the first few of them if they are many."""
    return ", ".join(texts[:NAMES]) + ", ..." * (len(texts) > NAMES)
