"""Notes on a job for its user: settings that are seldom meant, and how its model is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpidl.algorithms.algorithm import Exchange
from mpidl.algorithms.coordination import Coordinated
from mpidl.config import Config
from mpidl.data import Dataset, Split
from mpidl.data.dataset import ArraySplit
from mpidl.data.labels import portions_are_alike
from mpidl.data.nested import WITHOUT
from mpidl.job.ownership import shares
from mpidl.nn.model import CompleteModel
from mpidl.partition.plan import Plan, rounded_otherwise
from mpidl.partition.sections import Sections
from mpidl.rules import RateSchedule, Rule

#: Names that a line lists.
NAMES = 5


def notes_on(config: Config, train: Split, read: Dataset) -> list[str]:
    """Return a line for each setting that works, but is seldom meant, with the training data as they are `read`."""
    return [
        *_on_algorithm(config),
        *_on_rule(config),
        *_on_unused(config),
        *_on_length(config, train),
        *_on_data(config, train),
        *_on_owners(config),
        *_on_classes(config, train, read),
    ]


def _on_algorithm(config: Config) -> list[str]:
    algorithm, kept = config.algorithm, config.kept
    if kept is None:
        return []
    values = [(key, getattr(algorithm, key), getattr(type(algorithm), key)) for key in kept.keys]
    return [
        f"algorithm.{key}: {value!r}, given for {kept.earlier}, is that of {algorithm.name} now; its own default is "
        f"{default!r}"
        for key, value, default in values
        if value != default
    ]


def _on_rule(config: Config) -> list[str]:
    algorithm, rule, kept = config.algorithm, config.rule, config.kept
    default = algorithm.default_rule
    if rule is None or default is None or rule == default:
        return []
    earlier = f", given for {kept.earlier}," if kept is not None and kept.rule else ""
    if not earlier and (isinstance(rule, type(default)) or not algorithm.outer):
        return []
    use = "outer rule" if algorithm.outer else "rule"
    return [
        f"server.rule: {_described(rule)}{earlier} is the {use} of {algorithm.name} now; its own default, by "
        f"--set server.rule=default, is {_described(default)}"
    ]


def notes_on_tensors(rules: Mapping[str, str]) -> list[str]:
    """Return a line for each rule, given the name of the rule of each tensor."""
    found = []
    for rule in dict.fromkeys(rules.values()):
        names = [name for name, its in rules.items() if its == rule]
        shown = ", ".join(names[:NAMES]) + f" and {len(names) - NAMES} more" * (len(names) > NAMES)
        found.append(f"{rule} updates {shown}")
    return found


def _on_unused(config: Config) -> list[str]:
    topology, name = config.topology, config.algorithm.name
    mirror, every = topology.mirror or 0.0, config.checkpoint.every
    unused = {
        f"topology.mirror: {mirror:g} s, but there is a checkpoint every {every:g} s": mirror >= every,
        f"topology.servers: {topology.servers}, but {name} has no servers": topology.servers > 1 and not config.servers,
        f"topology.schedule: {topology.schedule!r}, but topology.stages is 1": (
            topology.stages == 1 and topology.schedule != type(topology).schedule
        ),
        f"rate: {name} ignores the schedule: a line search finds the length of each step": (
            config.algorithm.coordinated and config.rate != RateSchedule()
        ),
    }
    return [line for line, found in unused.items() if found]


def _on_length(config: Config, train: Split) -> list[str]:
    run, algorithm = config.run, config.algorithm
    least = algorithm.least_epochs if isinstance(algorithm, Coordinated) else 0
    epochs = run.epochs if run.steps is None else run.steps * config.data.batch / train.samples
    if epochs is None or epochs >= least:
        return []
    key = "epochs" if run.steps is None else "steps"
    return [
        f"run.{key}: {getattr(run, key)}, too few for {algorithm.name} to train its whole model: expected {least} "
        "epochs or more"
    ]


def _described(rule: Rule) -> str:
    """Return a rule's name and hyperparameters: ``"nesterov (rate 0.7, momentum 0.9)"``."""
    return f"{rule.name} ({', '.join(f'{key} {value:g}' for key, value in vars(rule).items())})"


def _on_data(config: Config, train: Split) -> list[str]:
    data = config.data
    if data.keep != "files" or data.portion % train.chunk == 0:
        return []
    if not data.by_portions(train):
        return [f"data.shuffle: 'samples', but the files are read in chunks of {train.chunk}: use 'portion'"]
    return [
        f"data.portion: {data.portion}, but the files are read in chunks of {train.chunk} samples, some of which "
        f"span two portions: use a multiple of {train.chunk}"
    ]


def _on_owners(config: Config) -> list[str]:
    algorithm = config.algorithm
    in_turn = algorithm.exchange is Exchange.REDUCTION or algorithm.policy(1).awaited
    if config.data.owned is None or in_turn:
        return []
    leans = f"{algorithm.name} leans towards the data of fast workers"
    if not algorithm.pattern(1).even:
        return [f"{config.data.owned}, and {leans}: rescaled and ringleader don't"]
    dropped = algorithm.max_staleness
    return [] if dropped is None else [f"algorithm.max_staleness: {dropped}, with which {leans}: leave it out"]


def _on_classes(config: Config, train: Split, read: Dataset) -> list[str]:
    by_portions = config.data.owned is None and read.order is None and config.data.by_portions(train)
    alike = by_portions and portions_are_alike(read.train, config.data.portion)
    return [_sorted_by_class()] if alike else []


def _sorted_by_class(owner: str = "") -> str:
    return (
        f"data.shuffle: 'portion', but the samples of a portion{owner} are of few classes, as in a file sorted by "
        "class: shuffle the file, or use 'samples'"
    )


def notes_on_owners(config: Config, data: Dataset, replicas: int) -> list[str]:
    """Return a line if the samples of one of the replicas, apart from those of others, are sorted by class."""
    found = shares(config, data, replicas) if config.data.by_portions(data.train) else None
    labels = None if found is None else data.train.labels(0, data.train.samples)
    if found is None or labels is None:
        return []
    for owner, own in enumerate(found):
        if portions_are_alike(ArraySplit(own[:, None], labels[own]), config.data.portion):
            return [_sorted_by_class(f" of worker {owner}")]
    return []


def notes_on_buffers(model: CompleteModel) -> list[str]:
    """Return a line on which of the model's float buffers count as what, if some aren't averaged."""
    if not model.own_buffers:
        return []
    means = [part.name for part in model.layout if any(part.range.intersect(each) for each in model.statistics)]
    averaged = f"; {_listed(means)}: averaged over replicas" if means else ""
    return [f"model: buffers {_listed(model.own_buffers)}: each replica keeps its own{averaged}"]


def notes_on_tables(config: Config, model: CompleteModel) -> list[str]:
    """Return a line on the tables whose rows don't start from the values of their weights, though these exist."""
    drawn = config.tables.first_values == "drawn"
    names = [name for name, rows in model.weights.first_rows().items() if drawn or rows is None]
    why = "tables.first_values is 'drawn'" if drawn else "these weights take no memory"
    return [f"model: {_listed(names)}: the rows begin with drawn values, since {why}"] if names else []


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
    """Return a line on the bits of a deterministic run, given the layers in which sums are rounded differently."""
    topology = config.topology
    where = [*(["micro-batches"] if topology.pipeline["micro_batches"] > 1 else []), *layers]
    if not (config.run.deterministic and where):
        return []
    return [
        f"run.deterministic: every run of {topology.partitions} partitions has the same bits, but runs of other "
        f"numbers of partitions don't, since sums are rounded differently in {_listed(where)}"
    ]


def _listed(texts: Sequence[str]) -> str:
    """Return texts as one, the first few of them if they are many."""
    return ", ".join(texts[:NAMES]) + ", ..." * (len(texts) > NAMES)
