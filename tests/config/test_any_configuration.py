"""Any configuration: what is right comes back equal, what is wrong is told with its key."""

import copy
import tomllib

from hypothesis import assume, given
from hypothesis import strategies as st
from refusals import line

from mpidl.config import SECTIONS, from_dict
from mpidl.metrics import METRICS
from mpidl.partition.schedules import SCHEDULES

#: All sections.
NAMES = [*SECTIONS, "algorithm", "server"]

counts = st.integers(1, 2**63 - 1)
stages = st.integers(1, 2**62 - 1)  # their double, a number of partitions, fits a TOML integer too
positive = st.floats(0, exclude_min=True, allow_nan=False)
words = st.text(st.characters(codec="utf-8"), min_size=1)
paths = words.filter(lambda path: "\0" not in path and all(len(name.encode()) <= 255 for name in path.split("/")))
layers = st.fixed_dictionaries(
    {"type": st.just("dense"), "units": counts},
    optional={"activation": st.sampled_from(["relu", "sigmoid", "tanh", "identity"]), "name": words},
)
batches = st.integers(1, 1000)

UNSET = {
    "run": ("epochs", "steps", "target", "patience"),
    "data": ("validation",),
    "model": ("layer", "factory", "loss", "clip"),
    "algorithm": ("rate", "max_staleness"),
    "virtual": ("calibration", "compute", "latency", "service", "bandwidth", "cores"),
    "debug": ("slow_worker",),
}  # keys whose default isn't written


def section(required=None, **optional):
    return st.fixed_dictionaries(required or {}, optional=optional)


run_length = st.sampled_from(["epochs", "steps"]).flatmap(lambda key: section(**{key: counts}))
run = st.builds(
    lambda length, target, rest: {**length, **target, **rest},
    run_length,
    section(target=st.sampled_from(["validation_loss < 0.1", "test_accuracy>=.9", "accuracy >= 0.9"])),
    section(
        name=paths.filter(lambda name: "/" not in name and name.isprintable() and name not in (".", "..")),
        dir=paths,
        seed=st.integers(0, 2**63 - 1),
        deterministic=st.booleans(),
        metrics=st.lists(st.sampled_from([*METRICS, "accuracy", "package.module:function"]), unique=True),
        patience=counts,
        report=positive,
    ),
)
SUBSECTIONS = ("augment", "normalise")
augment = section(
    {"reflect": st.booleans(), "translate": st.integers(0, 2**63 - 1)},
    rotate=st.floats(0, 180),
    noise=st.floats(0, allow_nan=False),
)
normalise = section(mean=st.floats(allow_nan=False, allow_infinity=False), std=positive)
data = st.builds(
    lambda source, batch: {**source, **batch},
    st.one_of(
        section({"source": st.just("digits")}),
        section({"source": st.just("idx"), "path": paths}),
        section(
            {"source": st.just("synthetic")}, shape=st.lists(counts, min_size=1), noise=st.floats(0, allow_nan=False)
        ),
    ),
    batches.flatmap(
        lambda n: section(
            {"batch": st.just(n)}, portion=st.integers(1, 9).map(lambda k: k * n), augment=augment, normalise=normalise
        )
    ),
)
server = st.one_of(
    section(),
    section({"rule": st.just("sgd"), "rate": positive}),
    section({"rule": st.just("adam")}, rate=positive, beta1=st.floats(0, 1, exclude_max=True)),
)
configs = st.fixed_dictionaries(
    {
        "data": data,
        "model": st.one_of(
            section(
                {"layer": st.lists(layers, min_size=1)},
                loss=st.just("mean_squared_error"),
                l2=st.floats(0, allow_nan=False),
                clip=positive,
            ),
            section({"layer": st.lists(layers, min_size=1)}, label_smoothing=st.floats(0, 1, exclude_max=True)),
            st.just({"factory": "package.models:network"}),
        ),
    },
    optional={
        "run": run,
        "algorithm": section(n_fetch=counts, n_push=counts, schedule=st.sampled_from(["aligned", "literal"])),
        "server": server,
        "topology": section(servers=counts, stages=stages, micro_batches=counts, schedule=st.sampled_from([*SCHEDULES]))
        .filter(lambda keys: keys.get("stages", 1) > 1 or keys.get("micro_batches", 1) == 1)
        .map(lambda keys: keys | ({"partitions": 2 * keys["stages"]} if keys.get("stages", 1) > 1 else {})),
        "checkpoint": section(every=positive, keep=counts),
        "device": section(
            kind=st.sampled_from(["auto", "cpu", "cuda"]),
            transfer=st.sampled_from(["auto", "direct", "staged"]),
            shards=st.booleans(),
        ).filter(lambda keys: not (keys.get("shards") and keys.get("kind") == "cpu")),
        "virtual": section(
            compute=st.sampled_from(["0.01", "jitter:0.01:0.2"]),
            cores=counts,
            slow=st.lists(st.fixed_dictionaries({"replica": st.integers(0, 9), "factor": positive})),
            death=st.lists(st.fixed_dictionaries({"replica": st.integers(0, 9), "at": positive})),
        ),
        "debug": section(slow_worker=st.integers(0, 9), slow_factor=st.floats(1, allow_nan=False)),
    },
)


@given(configs)
def test_a_configuration_written_and_read_is_the_same(values):
    config = from_dict(values)
    written = tomllib.loads(config.to_toml())
    assert from_dict(written) == config
    assert set(written) == set(NAMES)
    for name, table in values.items():
        for key, value in table.items():
            found = written[name][key]
            assert value.items() <= found.items() if key in SUBSECTIONS else found == value


@given(configs, st.sampled_from(NAMES), st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1))
def test_an_unknown_key_anywhere_is_named(values, name, key):
    assume(key not in tomllib.loads(from_dict(values).to_toml())[name])
    assume(key not in UNSET.get(name, ()))
    values = copy.deepcopy(values)
    values.setdefault(name, {})[key] = 1
    assert line(values).startswith(f"{name}.{key}: unknown key")


@given(configs, st.data())
def test_a_wrong_type_anywhere_is_named(values, draw):
    written = tomllib.loads(from_dict(values).to_toml())
    name = draw.draw(st.sampled_from([each for each in NAMES if written[each]]))
    key = draw.draw(st.sampled_from(list(written[name])))
    written[name][key] = "a" if key in SUBSECTIONS else {"a": 1}
    assert line(written).startswith(f"{name}.{key}: ")
