"""The networks of jobs/ that may be cut: those without tables."""

import tomllib
from pathlib import Path

from mpidl.nn.network import layer_from_section

JOBS = Path(__file__).resolve().parents[2] / "jobs"
SHAPES = {"digits": (8, 8), "idx": (28, 28), "cifar10": (32, 32, 3)}


def networks():
    """Return the layers and the shape of inputs of each network in jobs/."""
    found = {}
    for path in sorted(JOBS.glob("*.toml")):
        job = tomllib.loads(path.read_text())
        sections = job["model"].get("layer") if "model" in job else None
        if sections and not any(section.get("sparse") for section in sections):
            layers = [layer_from_section(section, "layer") for section in sections]
            data = job["data"]
            found[path.stem] = layers, tuple(data["shape"]) if "shape" in data else SHAPES[data["source"]]
    return found


NETWORKS = networks()
