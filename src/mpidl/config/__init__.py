"""The configuration of a run."""

from mpidl.config.cluster import TopologySection, VirtualSection
from mpidl.config.configuration import SECTIONS, Config, from_dict, load
from mpidl.config.sections import (
    PYTHON_MODEL,
    CheckpointSection,
    DataSection,
    DebugSection,
    DeviceSection,
    ModelSection,
    RunSection,
    source_of,
)
from mpidl.config.tables import TablesSection

__all__ = [
    "PYTHON_MODEL",
    "SECTIONS",
    "CheckpointSection",
    "Config",
    "DataSection",
    "DebugSection",
    "DeviceSection",
    "ModelSection",
    "RunSection",
    "TablesSection",
    "TopologySection",
    "VirtualSection",
    "from_dict",
    "load",
    "source_of",
]
