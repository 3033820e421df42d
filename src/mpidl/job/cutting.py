"""A job whose model is cut over the ranks of a replica."""

from __future__ import annotations

from collections.abc import Sequence

from mpidl.job.job import Job
from mpidl.job.planning import plan_model
from mpidl.nn import Network
from mpidl.nn.capabilities import Staged
from mpidl.partition.group import Group
from mpidl.partition.network import CutNetwork
from mpidl.partition.plan import Plan, rounded_otherwise
from mpidl.partition.section import Section, section_of
from mpidl.partition.sections import Sections, sections_of

#: Names that a line lists.
NAMES = 5


def cut(job: Job, partitions: int) -> Plan | Sections:
    """Plan how a job's model is cut, and let the job's vectors have the plan's layout.

    Parameters
    ----------
    job : Job
    partitions : int
        Number of ranks of a replica.

    Returns
    -------
    Plan or Sections
        The same one on every rank.

    Raises
    ------
    UsageError
        The model can't be cut like this.
    """
    stages = job.config.topology.stages
    if isinstance(job.original, Staged) and stages == partitions:
        sections = sections_of(job.original, stages)
        job.lay_out(sections.layout, sections.slices)
        runs = ", ".join(f"{run.start}-{run.stop - 1}" if run.size > 1 else f"{run.start}" for run in sections.runs)
        job.notes.append(f"each replica is cut into {stages} stages: modules {runs}")
        _say_bits(job, [])
        return sections
    plan = plan_model(job, partitions, stages)
    job.lay_out(plan.layout, plan.slices)
    hows = {step.name: step.how for step in reversed(plan.steps)}
    cuts = [f"{name} by {how}" for name, how in reversed(hows.items())]
    in_stages = f" in {stages} stages" if stages > 1 else ""
    job.notes.append(f"each replica is cut over {partitions} ranks{in_stages}: {_listed(cuts)}")
    _say_bits(job, rounded_otherwise(plan, clips=job.config.model.clip is not None))
    return plan


def take_part(job: Job, plan: Plan | Sections, group: Group) -> None:
    """Let this rank compute its part of a job's model, together with the other ranks of its replica."""
    part: CutNetwork | Section
    pipeline = job.config.topology.pipeline
    if isinstance(plan, Sections):
        part = section_of(job.original, plan, group.rank, **pipeline)
    else:
        assert isinstance(job.original, Network)
        part = CutNetwork(job.original, plan, group.rank, **pipeline)
    part.freeze(job.frozen)
    part.bind(group)
    job.part = job.model = part
    job.group, job.slice = group, part.slice


def _say_bits(job: Job, layers: Sequence[str]) -> None:
    """Say of a deterministic job what its bits depend on, some layers being those where sums are rounded otherwise."""
    topology = job.config.topology
    where = [*(["micro-batches"] if topology.pipeline["micro_batches"] > 1 else []), *layers]
    if job.config.run.deterministic and where:
        job.notes.append(
            f"run.deterministic: the bits are those of any run of {topology.partitions} partitions; of other numbers "
            f"of them not, since sums are rounded otherwise in {_listed(where)}"
        )


def _listed(texts: Sequence[str]) -> str:
    """Return texts as one, the first few of them if they are many."""
    return ", ".join(texts[:NAMES]) + ", ..." * (len(texts) > NAMES)
