"""The types of the keywords of `mpidl.train`, written by `python docs/generate.py`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from mpidl.config import DebugSection, DeviceSection, TablesSection
from mpidl.data import Augmentation, Normalisation
from mpidl.nn.groups import Group
from mpidl.rules import RateSchedule

class Keywords(TypedDict, total=False):
    name: str | None  # run.name
    dir: str | Path | None  # run.dir
    epochs: int | None  # run.epochs
    steps: int | None  # run.steps
    seed: int | None  # run.seed
    deterministic: bool | None  # run.deterministic
    metrics: Sequence[str] | None  # run.metrics
    target: str | None  # run.target
    patience: int | None  # run.patience
    report: float | None  # run.report
    ema: float | None  # run.ema
    terminate_on_nan: bool | None  # run.terminate_on_nan
    trace: bool | float | None  # run.trace
    hang_after: float | None  # run.hang_after
    batch: int | None  # data.batch
    validation: float | None  # data.validation
    portion: int | None  # data.portion
    shuffle: Literal["samples", "portion"] | None  # data.shuffle
    drop_last: bool | None  # data.drop_last
    data_keep: Literal["files", "memory", "distributed"] | None  # data.keep
    private: bool | None  # data.private
    split: str | None  # data.split
    augment: Augmentation | Mapping[str, Any] | None  # data.augment
    normalise: Normalisation | Mapping[str, Any] | None  # data.normalise
    label_smoothing: float | None  # model.label_smoothing
    l2: float | None  # model.l2
    clip: float | None  # model.clip
    dtype: Literal["float32", "float64"] | None  # model.dtype
    autocast: Literal["bfloat16"] | None  # model.autocast
    compile: bool | None  # model.compile
    micro_batches: int | None  # model.micro_batches
    loss_weights: Mapping[str, float] | None  # model.loss_weights
    groups: Sequence[Group | Mapping[str, Any]] | None  # model.group
    initial: str | Path | None  # model.initial
    rate: RateSchedule | Mapping[str, Any] | None  # rate
    servers: int | None  # topology.servers
    partitions: int | None  # topology.partitions
    stages: int | None  # topology.stages
    topology_schedule: str | None  # topology.schedule
    topology_micro_batches: int | None  # topology.micro_batches
    transport: Literal["auto", "windows", "mixed", "messages"] | None  # topology.transport
    relay: bool | None  # topology.relay
    survive: Literal["auto", "off"] | None  # topology.survive
    standby: int | None  # topology.standby
    min_workers: int | None  # topology.min_workers
    mirror: float | None  # topology.mirror
    tables: TablesSection | Mapping[str, Any] | None  # tables
    checkpoint_every: float | None  # checkpoint.every
    keep: int | None  # checkpoint.keep
    full_every: int | None  # checkpoint.full_every
    checkpoint_patience: float | None  # checkpoint.patience
    device: DeviceSection | Mapping[str, Any] | str | None  # device
    debug: DebugSection | Mapping[str, Any] | None  # debug
