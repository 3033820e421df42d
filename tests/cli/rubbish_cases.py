"""Bad configurations at random."""

from __future__ import annotations

import copy
import datetime
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import tomli_w

from mpidl import schema
from mpidl.algorithms import ALGORITHMS
from mpidl.config import SECTIONS
from mpidl.data import SOURCES
from mpidl.nn import LAYERS
from mpidl.rules import RULES

#: Kinds of cases: a value, a key or a section is wrong; the text is; data, options, or the user's model are.
KINDS = ("values", "keys", "text", "data", "options", "factories")

LONG = "x" * 10_000
JUNK: list[Any] = [
    -1, 0, 1, 2, 7, 10**6, 2**31, 2**63 - 1, 2**63, 10**30, -(2**70), 0.0, -0.5, 1e-320, 1.5, 1e308, math.inf,
    -math.inf, math.nan, True, False, "", " ", "a", LONG, "\x1b[31mred\x07", "a\nb", "\u202eabc", "\0", "/", "..",
    "../../x", "~", "~nobody/x", "/dev/null", "/dev/zero", "%s%n{x}", "ünïcödé", "1", "nan", "constant:-1", "topk:2",
    "python:object", "os:getcwd", "no.such:thing", [], [[]], [math.nan], [0], [1, 2, 3], [2**62] * 3, [1] * 1000,
    ["a"], [[1], 2], [{}], {}, {"a": 1}, {"a": {"b": [1]}}, {LONG: LONG},
    datetime.date(2020, 2, 29), datetime.time(1, 2),
]  # fmt: skip
NETWORKS: list[list[dict[str, Any]]] = [
    [{"type": "dense", "units": 10}],
    [
        {"type": "conv2d", "channels": 4, "size": 3, "padding": 1, "activation": "relu"},
        {"type": "max_pool2d", "size": 2},
        {"type": "batch_normalisation"},
        {"type": "dropout", "rate": 0.5},
        {"type": "dense", "units": 10},
    ],
    [{"type": "embedding", "vocabulary": 300, "units": 2}, {"type": "dense", "units": 10}],
    [{"type": "locally_connected2d", "channels": 2}, {"type": "flatten"}, {"type": "dense", "units": 10}],
    [
        {"type": "dense", "units": 10, "name": "a"},
        {"type": "activation", "activation": "tanh", "name": "b"},
        {"type": "add", "inputs": ["a", "b"]},
        {"type": "layer_normalisation"},
    ],
]
#: Options of the command line, each with junk in them.
OPTIONS = [
    [], ["train"], ["train", "absent.toml"], ["train", "."], ["evaluate"], ["evaluate", "/"], ["evaluate", "absent"],
    ["train", "--resume", "absent"], ["train", "\x1b[31m.toml"], ["\x1b[31m"], [LONG], ["train", LONG],
    ["export"], ["export", "absent", "--to", "npz"], ["export", "images", "--to", LONG], ["predict", ".", "test"],
    *(["export", ".", "--to", "npz", "--step", step] for step in ("x", "-1", "9" * 5000, LONG)),
    ["predict", "absent", "test", "-o", "out.h5"], ["predict", ".", LONG, "-o", LONG], ["predict", ".", "x", "-o", "/"],
    ["simulate", "."], ["data", "pack", "absent", "out.h5"], ["data", "pack", ".", "out.h5"],
    ["data", "pack", "images", "/"], ["data", "pack", "images", "job.toml"],
    ["data", "pack", "images", "absent/out.h5"],
    ["data", "pack", "images", "out.h5", "--size", "-3"], ["data", "pack", "images", "out.h5", "--size", "9999999"],
    ["data", "pack", "images", "out.h5", "--test-fraction", "nan"],
    *(["plan", "job.toml", "--ranks", number] for number in ("1000000000", "-1", "0", "x", "9" * 5000)),
    *(["simulate", "job.toml", "--replicas", number] for number in ("1000000000", "-1", "0", "x", "999999")),
    *(["train", "job.toml", "-n", number] for number in ("1000000000", "-1", "0", "x", "999999")),
    *(["train", "job.toml", "--resume", path] for path in ("/", LONG, "job.toml", "absent")),
]  # fmt: skip


def cases(
    seed: int, kinds: tuple[str, ...] = KINDS, commands: tuple[str, ...] = ("train", "plan", "simulate")
) -> Iterator[Callable[[Path], list[str]]]:
    """Yield functions that write a case's files into a directory, and return the command's arguments."""
    number = 0
    while True:
        chance = random.Random(f"{seed} {number}")
        kind = kinds[number % len(kinds)]
        yield lambda place, chance=chance, kind=kind: _write(place, chance, kind, commands)  # type: ignore[misc]
        number += 1


def _write(place: Path, chance: random.Random, kind: str, commands: tuple[str, ...]) -> list[str]:
    config = _right(chance)
    if kind == "options" and len(commands) > 1:
        _save(place / "job.toml", config)
        return chance.choice(OPTIONS)
    command = chance.choice(commands)
    arguments = [command, "job.toml"] + (["--replicas", "3"] if command == "simulate" else [])
    text = ""
    for _ in range(chance.choice([1, 1, 2, 3])):
        if kind == "values":
            _change_value(config, chance)
        elif kind == "keys":
            _change_key(config, chance)
        elif kind == "data":
            config["data"] = {"source": "hdf5", "path": _write_data(place, chance), "batch": 16}
        elif kind == "factories":
            (place / "bad.py").write_text(FACTORIES)
            names = [name for name in FACTORIES.split() if name.startswith("f_")]
            config["model"] = {"factory": f"bad:{chance.choice(names).partition('(')[0]}"}
        elif kind == "options":
            section = chance.choice([*SECTIONS, "algorithm", "server"])
            key = chance.choice([*_keys(section, config), "a", ""])
            arguments += ["--set", f"{section}.{key}={str(chance.choice(JUNK)).replace(chr(0), '')}"]
    _save(place / "job.toml", config)
    if kind == "text":
        text = _changed_text((place / "job.toml").read_text(), chance)
        (place / "job.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    return arguments


def _save(path: Path, config: dict[str, Any]) -> None:
    path.write_text(tomli_w.dumps(config), encoding="utf-8")


def _right(chance: random.Random) -> dict[str, Any]:
    """Return a configuration that is right, and trains in a moment, unless the algorithm can't take the model."""
    config: dict[str, Any] = {
        "run": {"steps": 2},
        "data": {"source": "digits", "batch": 64},
        "model": {"layer": copy.deepcopy(chance.choice(NETWORKS))},
        "algorithm": {"name": chance.choice(list(ALGORITHMS))},
        "server": {"rule": chance.choice(list(RULES))},
        "virtual": {"compute": 0.01},
    }
    if ALGORITHMS[config["algorithm"]["name"]].default_rule is None:
        config["server"] = {}
    if chance.random() < 0.2:
        config["data"] = {"source": "synthetic", "samples": 200, "test_samples": 50, "shape": [8, 8], "batch": 20}
    return config


def _keys(section: str, config: dict[str, Any]) -> list[str]:
    """Return the keys of a section, whether they are given or not."""
    table = config.get(section)
    table = table if isinstance(table, dict) else {}
    if section == "algorithm":
        return ["name", *schema.keys(ALGORITHMS.get(str(table.get("name")), ALGORITHMS["downpour"]))]
    if section == "server":
        return ["rule", *schema.keys(RULES.get(str(table.get("rule")), RULES["sgd"]))]
    own = schema.keys(SOURCES[table["source"]]) if table.get("source") in list(SOURCES) else []
    return [*schema.keys(SECTIONS[section]), *own]


def _change_value(config: dict[str, Any], chance: random.Random) -> None:
    """Put junk where a value is expected."""
    layers = config["model"].get("layer") if isinstance(config.get("model"), dict) else None
    if isinstance(layers, list) and chance.random() < 0.35:
        layer = chance.choice([each for each in layers if isinstance(each, dict)] or [{}])
        known = schema.keys(LAYERS[layer["type"]]) if layer.get("type") in list(LAYERS) else ["units"]
        layer[chance.choice(["type", *known])] = copy.deepcopy(chance.choice(JUNK))
        return
    section = chance.choice([*SECTIONS, "algorithm", "server"])
    table = config.setdefault(section, {})
    if isinstance(table, dict):
        table[chance.choice(_keys(section, config))] = copy.deepcopy(chance.choice(JUNK))


def _change_key(config: dict[str, Any], chance: random.Random) -> None:
    """Rename, remove or add a key or a section."""
    section = chance.choice(list(config))
    table = config[section]
    name = chance.choice(["epoch", "rats", "name", "", " ", LONG, "\x1b[31m", "a.b", "ключ", "layer", "type"])
    change = chance.randrange(5)
    if change == 0:
        del config[section]
    elif change == 1:
        config[name] = config.pop(section)
    elif change == 2:
        config[section] = copy.deepcopy(chance.choice(JUNK))
    elif isinstance(table, dict) and table:
        key = chance.choice(list(table))
        value = table.pop(key) if change == 3 else copy.deepcopy(chance.choice(JUNK))
        if chance.random() < 0.7:
            table[name] = value


def _changed_text(text: str, chance: random.Random) -> str:
    """Return a text with something in it that is hardly TOML."""
    start = chance.randrange(len(text))
    stop = min(len(text), start + chance.randrange(1, 40))
    inserted = chance.choice([
        "\0", "\udcff", "\ufeff", "=", "[", "]]", '"', "'''", "\\", "\n[run]\n", "\n[[run]]\n",
        "x = " + "[" * 3000 + "\n",
        "\nx = " + "{a=" * 3000 + "\n", "\nrun.seed = " + "9" * 5000 + "\n", "\nseed = 0x" + "f" * 5000 + "\n", "# ",
        "\n" + ".".join(["a"] * 5000) + " = 1\n", "\r", "1e999", "0x", "inf", text,
    ])  # fmt: skip
    return chance.choice([
        text[:start] + text[stop:], text[:start] + inserted + text[start:], text[:start] + inserted + text[stop:],
        inserted + text, text + inserted, text[start:stop], "", inserted,
    ])  # fmt: skip


def _write_data(place: Path, chance: random.Random) -> str:
    """Write an HDF5 file, mostly a bad one, and return its path."""
    path, inner = place / "data.h5", np.random.default_rng(chance.randrange(1000))
    arrays: dict[str, Any] = {
        "train/x": inner.random((60, 8, 8)), "train/y": np.arange(60) % 10,
        "test/x": inner.random((20, 8, 8)), "test/y": np.arange(20) % 10,
    }  # fmt: skip
    key = chance.choice(list(arrays))
    change: Callable[[Any], Any] = chance.choice([
        lambda a: a[:0], lambda a: a[:7], lambda a: a[..., None], lambda a: a.astype("S3"), lambda a: a * 1j,
        lambda a: a - 5, lambda a: a * 1000, lambda a: a / 0.0, lambda a: a[0], lambda a: (a * 255).astype("u1"),
        lambda a: a.astype("i8"), lambda a: a > 0, lambda a: a.astype("f2"), lambda a: a.reshape(len(a), -1),
        lambda a: np.zeros((len(a), 0)),
    ])  # fmt: skip
    with np.errstate(all="ignore"), h5py.File(path, "w") as file:
        arrays[key] = change(arrays[key])
        for name, values in arrays.items():
            if (name, chance.random() < 0.1) != (key, True):
                file[name] = values
        if chance.random() < 0.1:
            del file["train"]
            layout = h5py.VirtualLayout((60, 8, 8), "f8")
            layout[:] = h5py.VirtualSource("moved.h5", "x", (60, 8, 8))
            file.create_virtual_dataset("train/x", layout)
            file["train/y"] = arrays["train/y"]
    contents = path.read_bytes()
    damage = chance.random()
    if damage < 0.1:
        path.write_bytes(contents[: chance.randrange(len(contents))])
    elif damage < 0.2:
        at = chance.randrange(len(contents))
        path.write_bytes(contents[:at] + os.urandom(1) + contents[at + 1 :])
    if not (place / "loop").is_symlink():
        (place / "loop").symlink_to("loop")
    return chance.choice(["data.h5"] * 8 + [".", "loop", "absent", "/dev/null", "", "\0", LONG])


FACTORIES = '''
"""Models that are wrong, each in its own way."""
import numpy as np


class Model:
    def __init__(self, size=8, **members):
        self.parameters = np.zeros(size)
        self.__dict__.update(members)

    def loss_and_gradient(self, batch):
        return 1.0, np.zeros(self.parameters.size)


def given(**members):
    return lambda dataset, seed: Model(**members)


f_number = 3
f_none = lambda dataset, seed: None
f_class = lambda dataset, seed: Model
f_nothing = lambda: Model()
f_raises = lambda dataset, seed: 1 / 0
f_key = lambda dataset, seed: {}["key"]
f_object = lambda dataset, seed: object()
f_list = given(parameters=[1.0, 2.0])
f_integers = given(parameters=np.zeros(8, int))
f_matrix = given(parameters=np.zeros((4, 2)))
f_empty = given(parameters=np.zeros(0))
f_half = given(parameters=np.zeros(8, np.float16))
f_strided = given(parameters=np.zeros(16)[::2])
f_nan = given(parameters=np.full(8, np.nan))
f_text = given(parameters="abc")
f_not_callable = given(loss_and_gradient=3)
f_loss_raises = given(loss_and_gradient=lambda batch: 1 / 0)
f_loss_none = given(loss_and_gradient=lambda batch: None)
f_loss_alone = given(loss_and_gradient=lambda batch: 1.0)
f_loss_text = given(loss_and_gradient=lambda batch: ("a", np.zeros(8)))
f_loss_array = given(loss_and_gradient=lambda batch: (np.zeros(3), np.zeros(8)))
f_loss_nan = given(loss_and_gradient=lambda batch: (float("nan"), np.zeros(8)))
f_short = given(loss_and_gradient=lambda batch: (1.0, np.zeros(7)))
f_wide = given(loss_and_gradient=lambda batch: (1.0, np.zeros((2, 4))))
f_single = given(loss_and_gradient=lambda batch: (1.0, np.zeros(8, np.float32)))
f_gradient_none = given(loss_and_gradient=lambda batch: (1.0, None))
f_gradient_list = given(loss_and_gradient=lambda batch: (1.0, [0.0] * 8))
f_gradient_nan = given(loss_and_gradient=lambda batch: (1.0, np.full(8, np.nan)))
f_evaluate_raises = given(evaluate=lambda batch: 1 / 0)
f_evaluate_none = given(evaluate=lambda batch: None)
f_evaluate_text = given(evaluate=lambda batch: ("a", "b"))
f_evaluate_number = given(evaluate=3)
f_layout = given(layout=3)
f_statistics = given(statistics=[(0, 99)])
'''
