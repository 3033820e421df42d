"""What a configuration can say, an argument of `mpidl.train` can say, and nothing that is given is ignored."""

import pytest

import mpidl
from mpidl import schema
from mpidl.algorithms import ALGORITHMS
from mpidl.config import SECTIONS, from_dict
from mpidl.nn.groups import Group
from mpidl.rules import RULES
from mpidl.runs.keywords import KEYWORDS

NETWORK = {"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}}
#: Keys that a script gives by the arguments `model`, `loss` and `loggers`, and the section of `mpidl simulate`.
OTHERWISE = {"model.layer", "model.factory", "model.loss", "run.loggers", "virtual"}
#: A value of each keyword that isn't the default.
VALUES = {
    "name": "other", "dir": "elsewhere", "epochs": 3, "steps": 5, "seed": 1, "deterministic": True, "metrics": ("f1",),
    "target": "accuracy > 0.5", "patience": 3, "report": 2.0, "trace": 4.0, "ema": 0.5, "terminate_on_nan": False,
    "batch": 16, "portion": 256, "shuffle": "portion", "drop_last": True, "data_keep": "memory", "validation": 0.25,
    "private": True, "split": "label:2",
    "augment": mpidl.data.Augmentation(reflect=True),
    "normalise": mpidl.data.Normalisation(mean=0.5), "label_smoothing": 0.1, "l2": 0.25, "clip": 2.0,
    "dtype": "float64", "groups": (Group("*", rate=2.0),), "initial": "weights.npz",
    "rate": mpidl.rules.RateSchedule("cosine"), "servers": 2, "partitions": 2, "stages": 2, "transport": "messages",
    "survive": "off", "standby": 2, "min_workers": 2, "mirror": 5.0,
    "relay": True, "tables": mpidl.config.TablesSection(max_rows=1000, admission=0.5),
    "checkpoint_every": 9.0, "keep": 8, "full_every": 5, "device": mpidl.config.DeviceSection("cuda"),
    "checkpoint_patience": 12.0, "hang_after": 40.0,
    "debug": mpidl.config.DebugSection(slow_worker=2), "autocast": "bfloat16", "compile": True, "micro_batches": 4,
    "loss_weights": {"a": 2.0},
    "topology_schedule": "gpipe", "topology_micro_batches": 4,
}  # fmt: skip
MODULES = ("autocast", "compile", "micro_batches", "loss_weights")
#: What some of them need beside them.
SIDE_DATA = {
    "stages": {"partitions": 2},
    "private": {"config": NETWORK | {"data": {"source": "hdf5", "path": ["a.h5", "b.h5"]}}},
    **{key: {"stages": 2, "partitions": 2} for key in ("topology_schedule", "topology_micro_batches")},
    **{key: {"config": {"model": {"factory": "a:b"}}} for key in MODULES},
}


def test_every_key_has_a_keyword():
    places = {*KEYWORDS.values()} | OTHERWISE
    keys = [(section, key) for section, cls in SECTIONS.items() for key in schema.keys(cls)]
    assert not [f"{section}.{key}" for section, key in keys if not {section, f"{section}.{key}"} & places]


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_sets_its_key(resolved, keyword):
    beside = {"config": NETWORK} | SIDE_DATA.get(keyword, {})
    if "model" not in beside["config"] or "factory" in beside["config"]["model"]:
        beside["data"] = mpidl.Digits()
    section, _, key = KEYWORDS[keyword].partition(".")
    found, before = (getattr(resolved(**beside, **given), section) for given in ({keyword: VALUES[keyword]}, {}))
    assert (getattr(found, key) if key else found) == VALUES[keyword]
    assert found != before


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_may_be_a_name_or_a_mapping(resolved, name):
    default = from_dict({**NETWORK, "algorithm": {"name": name}})
    assert resolved(config=NETWORK, algorithm=name) == default
    assert resolved(config={**NETWORK, "algorithm": {"n_push": 3}}, algorithm=name) == default
    assert resolved(config=from_dict(NETWORK), algorithm=default.to_dict()["algorithm"]) == default


@pytest.mark.parametrize("name", RULES)
def test_a_rule_may_be_a_name_or_a_mapping(resolved, name):
    for rule in (name, {"rule": name}, RULES[name]()):
        assert resolved(config={**NETWORK, "server": {"rule": "adam", "rate": 3}}, rule=rule).rule == RULES[name]()
    assert resolved(config=from_dict(NETWORK), rule={"rule": name, "rate": 3}).rule == RULES[name](3)


def test_a_configuration_beside_a_model_keeps_what_does_not_describe_the_model(resolved):
    model, data = mpidl.Network([mpidl.Dense(10)], (8, 8)), mpidl.Digits()
    layers = {"layer": [{"type": "dense", "units": 10}], "loss": "mean_squared_error", "dtype": "float64"}
    for config in ({"model": {"clip": 2.0, "l2": 0.5, **layers}}, {"model": {"clip": 2.0, "l2": 0.5}}):
        for given in (config, from_dict({**NETWORK, **config}) if "layer" in config["model"] else config):
            section = resolved(model, data, config=given).model
            assert (section.clip, section.l2) == (2.0, 0.5)
            assert (section.layer, section.loss, section.dtype, section.factory) == (None, None, None, "python:object")
    section = resolved(model, data, config={"model": {"factory": "a:b", "loss": "mse_loss"}}, autocast="bfloat16").model
    assert (section.factory, section.loss, section.autocast) == ("python:object", "mse_loss", "bfloat16")
    assert resolved(model, data, loss="l1_loss", config={"model": {"loss": "mse_loss"}}).model.loss == "l1_loss"
    assert resolved(config=NETWORK, loss="mean_squared_error").model.loss == "mean_squared_error"


OWN_RULE = "but easgd has no choice of rule, expected no [server], or server.rule = 'default' alone"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"config": {"model": {"nonsense": 1}}}, "model.nonsense: unknown key; known: autocast, "),
        ({"config": {"model": {"label_smoothing": 0.5}}}, "model.label_smoothing: only for [[model.layer]]; "),
        ({"config": {"data": {"source": "digit"}}}, "data.source: unknown name 'digit', did you mean 'digits'?"),
        ({"config": {"data": {"path": "x"}}}, "data.path: unknown key"),
        ({"config": {"model": 3}}, "model: expected a section, [model], found 3"),
        ({"algorithm": mpidl.algorithms.Easgd(), "rule": mpidl.Sgd()}, f"server.rule: 'sgd', {OWN_RULE}"),
        ({"config": {"algorithm": {"name": "easgd"}, "server": {"rate": 3}}}, f"server.rate: 3, {OWN_RULE}"),
        ({"algorithm": "easgd", "rule": {"rule": "default", "rate": 3}}, f"server.rate: 3, {OWN_RULE}"),
    ],
)
def test_what_is_given_beside_a_model_or_an_algorithm_is_not_ignored(resolved, arguments, line):
    model, data = mpidl.Network([mpidl.Dense(10)], (8, 8)), mpidl.Digits()
    with pytest.raises(mpidl.UsageError) as error:
        resolved(model, data, **arguments)
    assert str(error.value).startswith(line)


def test_a_loss_without_a_model(resolved):
    with pytest.raises(mpidl.UsageError, match=r"^loss: found .*, expected a name: a function needs a model"):
        resolved(config=NETWORK, loss=lambda outputs, targets: 0)


@pytest.mark.parametrize("algorithm", ["easgd", "sandblaster", "diloco", "downpour"])
def test_the_default_rule_by_its_name(resolved, algorithm, tmp_path):
    own = ALGORITHMS[algorithm].default_rule
    given = {**NETWORK, "algorithm": {"name": algorithm}}
    assert resolved(config={**given, "server": {"rule": "default"}}).rule == own
    path = tmp_path / "job.toml"
    path.write_text(mpidl.config.toml.dump({**NETWORK, "server": {"rule": "adam", "rate": 0.5}}))
    changed = [f"algorithm.name={algorithm}", "server.rule=default"]
    assert mpidl.config.load(path, changed).rule == own
    assert resolved(config=path, algorithm=algorithm, rule="default").rule == own
    if own is not None:
        for overrides in ([*changed, "server.rate=0.25"], ["server.rate=0.25", *changed]):
            assert mpidl.config.load(path, overrides).rule == type(own)(0.25)


def test_another_algorithm_than_a_configuration_has_comes_with_its_own_rule(resolved):
    """A `Config` has a rule in any case; only one that isn't its algorithm's own has been chosen."""
    diloco = mpidl.algorithms.Diloco()
    assert resolved(config=from_dict(NETWORK), algorithm=diloco).rule == diloco.default_rule
    assert resolved(config=from_dict(NETWORK), algorithm="easgd").rule is None
    chosen = from_dict({**NETWORK, "server": {"rule": "adam"}})
    assert resolved(config=chosen, algorithm=diloco).rule == mpidl.Adam()
