"""Configurations: defaults, what a file and a command line set, and the line that each mistake gets."""

import os
import tomllib
from pathlib import Path

import pytest
from refusals import line

from mpidl.config import from_dict, load, toml
from mpidl.config.configuration import Kept
from mpidl.data import Augmentation, Digits
from mpidl.errors import UsageError
from mpidl.job.build import build_model
from mpidl.nn import SoftmaxCrossEntropy
from mpidl.nn.losses import Regularisation
from mpidl.rules import Adagrad

JOBS = Path(__file__).parents[2] / "jobs"

DENSE = {"type": "dense", "units": 10}


def minimal():
    return {"data": {"source": "digits"}, "model": {"layer": [dict(DENSE)]}}


def smoothed(label_smoothing, loss="softmax_cross_entropy"):
    return {"model": {"layer": [DENSE], "loss": loss, "label_smoothing": label_smoothing}}


#: Sections in TOML that replace those of `minimal`, each with its error message, or the beginning of it.
WRONG = """
run.epoch = 3 | run.epoch: unknown key, did you mean 'epochs'?
run = {epochs = 3, steps = 3} | run.steps: run.epochs is given too, expected one of them
run.epochs = 0 | run.epochs: expected int >= 1, found 0
run.epochs = true | run.epochs: expected int >= 1, found True
run.name = "a/b" | run.name: 'a/b' can't name a directory within run.dir
run.name = "" | run.name: expected non-empty str, found ''
run.metrics = "f1" | run.metrics: expected list of str, found 'f1'
run.metrics = ["top5_acuracy"] | run.metrics[0]: unknown name 'top5_acuracy', did you mean 'top5_accuracy'?
run.metrics = ["f1", "mine:f1"] | run.metrics: ['f1', 'mine:f1'], expected each name once
run.target = "test_los < 1" | run.target: unknown figure 'test_los', did you mean 'test_loss'?
run.target = "test_f1 > 0.5" | run.target: test_f1, but run.metrics has no 'f1'
run.patience = 0 | run.patience: expected int >= 1, found 0
data = {source = "digits", validation = 1} | data.validation: expected float > 0 and < 1, found 1
data.source = "idx" | data.path: missing, expected str
data.source = "digit" | data.source: unknown name 'digit', did you mean 'digits'?
data.source = 3 | data.source: unknown name 3; known: arrays, cifar10, click_log, digits, factory, hdf5, idx, synthetic
data = {} | data.source: missing; known: arrays, cifar10, click_log, digits, factory, hdf5, idx, synthetic
data = {source = "digits", bach = 3} | data.bach: unknown key, did you mean 'batch'?
data = {source = "digits", augment = 3} | data.augment: expected a section, [data.augment], found 3
data = {source = "digits", augment = {refelct = true}} | data.augment.refelct: unknown key, did you mean 'reflect'?
data = {source = "digits", augment = {rotate = 200}} | data.augment.rotate: expected float >= 0 and <= 180, found 200
data = {source = "digits", batch = "abc"} | data.batch: expected int >= 1, found 'abc'
data = {source = "digits", batch = 32, portion = 100} | data.portion: 100, expected a multiple of data.batch (32)
data = {source = "synthetic", shape = [8, 0]} | data.shape: expected non-empty list of int >= 1, found [8, 0]
server.rule = "adagard" | server.rule: unknown name 'adagard', did you mean 'adagrad'?
server.rate = -0.1 | server.rate: expected float > 0, found -0.1
server.rate = nan | server.rate: expected float > 0, found nan
server = 3 | server: expected a section, [server], found 3
algorithm.schedule = "late" | algorithm.schedule: expected 'aligned' or 'literal', found 'late'
device.kind = "tpu" | device.kind: expected 'auto' or 'cpu' or 'cuda', found 'tpu'
device = {kind = "cpu", shards = true} | device.shards: true, but device.kind is 'cpu', expected 'auto' or 'cuda'
model = {} | model.layer: expected [[model.layer]] sections or model.factory, found neither
model.layer = [] | model.layer: expected non-empty list of table, found []
model.factory = "a.b" | model.factory: expected module:function, found 'a.b'
model = {layer = [{type = "dense", units = 10}], l2 = -0.1} | model.l2: expected float >= 0, found -0.1
model = {layer = [{type = "dense", units = 10}], clip = 0} | model.clip: expected float > 0, found 0
topology.schedule = "zero_buble" | topology.schedule: unknown name 'zero_buble', did you mean 'zero_bubble'?
topology.stages = 2 | topology.stages: 2, but partitions is 1, expected a multiple of 2
topology.stages = 0 | topology.stages: expected int >= 1, found 0
topology.micro_batches = 4 | topology.micro_batches: 4, but stages is 1, expected at least 2 stages
checkpoint.patience = 0 | checkpoint.patience: expected float > 0, found 0
run.hang_after = -1 | run.hang_after: expected float > 0, found -1
checkpont = {} | checkpont: unknown section, did you mean 'checkpoint'?
model.layer = [{type = "dense", unit = 3}] | model.layer[0].unit: unknown key, did you mean 'units'?
model.layer = [{type = "dens", units = 3}] | model.layer[0].type: unknown name 'dens', did you mean 'dense'?
model.layer = [{type = "dense", units = 0}] | model.layer[0].units: expected int >= 1, found 0
run.deterministic = true; algorithm.overlap = true |
    algorithm.overlap: true depends on timing, which rules out run.deterministic = true
run.deterministic = true; algorithm.warm_start = 0.5 |
    algorithm.warm_start: 0.5 depends on timing, which rules out run.deterministic = true
run.deterministic = true; algorithm.name = "hogwild" |
    algorithm.name: hogwild depends on timing, which rules out run.deterministic = true
run.deterministic = true; algorithm.name = "sandblaster" |
    algorithm.name: sandblaster depends on timing, which rules out run.deterministic = true
server.rule = "SGD" | server.rule: unknown name 'SGD', did you mean 'sgd'?
server.lr = 0.1 | server.lr: unknown key, did you mean 'rate'?
server = {rule = "sgd", momentum = 0.9} | server.momentum: unknown key; it belongs to momentum, nesterov, muon
algorithm = {name = "easgd", n_push = 2} | algorithm.n_push: unknown key; it belongs to downpour, rescaled
data = {source = "digits", batch_size = 2} | data.batch_size: unknown key, did you mean 'batch'?
model.layer = [{type = "dense", units = 10, vocabulary = 3}] |
    model.layer[0].vocabulary: unknown key; it belongs to embedding
run.ema = 1.0 | run.ema: expected float > 0 and < 1, found 1.0
run.ema = 0.9; algorithm.name = "hogwild" | run.ema: 0.9, but hogwild keeps no average; leave it out
run.ema = 0.9; algorithm.name = "sandblaster" | run.ema: 0.9, but sandblaster keeps no average; leave it out
run.ema = 0.9; algorithm = {name = "diloco", fragments = 2} |
    run.ema: 0.9, but diloco with fragments or overlap keeps no average; leave it out
run.ema = 0.9; device = {kind = "cuda", shards = true} |
    run.ema: 0.9, not supported with device.shards, expected device.shards = false
rate.schedule = "cosin" | rate.schedule: 'cosin', expected one of 'constant', 'steps', 'linear'...
rate.schedule = "my file:f" | rate.schedule: expected module:function, found 'my file:f'
rate = {schedule = "linear", epochs = [3]} | rate.epochs: [3.0], the schedule 'linear' takes none...
rate = {schedule = "cosine", patience = 2} | rate.patience: 2, the schedule 'cosine' takes none...
run.deterministic = true; rate.schedule = "plateau" |
    rate.schedule: 'plateau' depends on timing, which rules out run.deterministic = true
virtual.failures = 0 | virtual.failures: '0.0', expected more than 0 seconds on average
virtual.node_failures = "monthly" | virtual.node_failures: 'monthly', expected SECONDS...
virtual.restart = -1 | virtual.restart: '-1.0', expected SECONDS...
topology.relay = true; algorithm.name = "sync" | topology.relay: true, but sync exchanges by reduction, without pushes
topology.relay = true; algorithm.name = "sandblaster" |
    topology.relay: true, but sandblaster exchanges by operations, without pushes
topology.relay = true; algorithm.name = "softsync" |
    topology.relay: true, but servers need single pushes of softsync, expected false
topology.relay = true; algorithm.name = "dynsgd" |
    topology.relay: true, but servers need single pushes of dynsgd, expected false
topology.relay = true; algorithm.name = "adag" |
    topology.relay: true, but servers need single pushes of adag, expected false
topology.relay = true; algorithm.max_staleness = 3 |
    topology.relay: true, but algorithm.max_staleness drops single pushes, expected false
topology.relay = true; run.deterministic = true |
    topology.relay: true, but run.deterministic is true and needs single pushes, expected false
"""
LINES = WRONG.strip().replace("\n    ", " ").splitlines()


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        *((tomllib.loads(given.replace("; ", "\n")), text) for given, text in (each.split(" | ") for each in LINES)),
        ({"run": {"name": "n" * 300}}, f"run.name: '{'n' * 56}...: no file can have such a name"),
        ({"run": {"dir": "d" * 300}}, f"run.dir: '{'d' * 56}...: no file can have such a name"),
        ({"run": {"dir": "d\udcff"}}, r"run.dir: expected non-empty str, found 'd\udcff', which is not UTF-8"),
        ({"data": {"source": "idx", "path": "\udcff"}}, r"data.path: expected str, found '\udcff', which is not UTF-8"),
        (smoothed(1), "model.label_smoothing: expected float >= 0 and < 1, found 1"),
        (smoothed(0.1, "mean_squared_error"), "model.label_smoothing: 0.1, the loss 'mean_squared_error' takes none"),
        (
            {"model": {"factory": "a:b", "label_smoothing": 0.1}},
            "model.label_smoothing: only for [[model.layer]]; this model has a loss of its own",
        ),
        ({"algorithm": {"n_fetch": "x" * 99}}, f"algorithm.n_fetch: expected int >= 1, found '{'x' * 56}..."),
    ],
)
def test_what_is_wrong_is_one_line(sections, text):
    told = line(minimal() | sections)
    assert told.startswith(text[:-3]) if text.endswith("...") else told == text


def test_a_minibatch_has_four_micro_batches_for_each_stage():
    def found(**keys):
        return from_dict({**minimal(), "topology": keys}).topology.pipeline

    assert found() == {"schedule": "one_forward_one_backward", "micro_batches": 1}
    assert found(partitions=3, stages=3)["micro_batches"] == 12
    assert found(partitions=3, stages=3, micro_batches=5, schedule="gpipe") == {"schedule": "gpipe", "micro_batches": 5}


def test_defaults():
    config = from_dict(minimal())
    assert (config.run.epochs, config.run.steps) == (10, None)
    assert (config.data.batch, config.data.portion) == (128, 512)
    assert config.data_source == Digits()
    assert config.rule == Adagrad()
    assert (config.checkpoint.patience, config.run.hang_after) == (30.0, None)
    assert config.algorithm.name == "downpour"
    assert config.model.loss == "softmax_cross_entropy"
    assert from_dict({**minimal(), "data": {"source": "digits", "batch": 7}}).data.portion == 28


def test_the_model_has_what_its_section_says():
    values = minimal()
    values["model"] |= {"label_smoothing": 0.1, "l2": 0.01, "clip": 2.0, "dtype": "float64"}
    config = from_dict(values)
    network = build_model(config, config.data_source.open())
    assert network.loss == SoftmaxCrossEntropy(0.1)
    assert network.regularisation == Regularisation(l2=0.01, clip=2.0)
    assert network.dtype == "float64"


def test_the_file_names_the_run(tmp_path):
    path = tmp_path / "my job.toml"
    path.write_text(toml.dump(minimal()))
    assert load(path).run.name == "my job"
    assert load(path, ["run.name=other"]).run.name == "other"


def test_a_pipe_is_read_once():
    reading, writing = os.pipe()
    text = """data.source = "digits"
algorithm = {name = "easgd", rate = 0.5}
model.layer = [{type = "dense", units = 2}]
"""
    os.write(writing, text.encode())
    os.close(writing)
    config = load(f"/dev/fd/{reading}", ["algorithm.name=aeasgd"])
    os.close(reading)
    assert (config.algorithm.name, config.algorithm.rate) == ("aeasgd", 0.5)
    assert config.kept == Kept("easgd", ("rate",), False)


def test_overrides(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(toml.dump({**minimal(), "run": {"epochs": 3}}))
    config = load(path, ["run.steps=7", "server.rule=sgd", " server.rate = 0.5", 'run.dir="a=b"', "data.batch=64"])
    assert (config.run.epochs, config.run.steps) == (None, 7)
    assert (config.rule.name, config.rule.rate) == ("sgd", 0.5)
    assert (config.run.dir, config.data.portion) == ("a=b", 256)
    augment = load(path, ["data.augment.translate=2", "data.augment.reflect=true"]).data.augment
    assert augment == Augmentation(reflect=True, translate=2)
    assert load(path, ["data.source=synthetic", "data.shape=[3, 5]"]).data_source.shape == (3, 5)
    assert load(path, ["model.factory=package:model"]).model.layer is None
    assert load(path, ["run.steps=7", "run.epochs=2"]).run.steps is None


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("run", "--set run: expected section.key=value"),
        ("epochs=3", "--set epochs=3: expected section.key=value"),
        ("data..batch=3", "--set data..batch=3: expected section.key=value"),
        ("data.source.size=3", "data.source: expected a section, [data.source], found 'digits'"),
        ("data.augment.noise=-1", "data.augment.noise: expected float >= 0, found -1"),
        ("run.=3", "--set run.=3: expected section.key=value"),
        ("model.layer=[]", "--set model.layer=[]: layers can't be set here, only in the file"),
        ("model.layer[0].units=3", "--set model.layer[0].units=3: layers can't be set here, only in the file"),
        ("rum.epochs=3", "rum: unknown section, did you mean 'run'?"),
        ("run.epoch=3", "run.epoch: unknown key, did you mean 'epochs'?"),
        ("run.epochs=a\nseed = 3", "run.epochs: expected int >= 1, found 'a\\nseed = 3'"),
        ("run.epochs=1\nseed = 3", "run.epochs: expected int >= 1, found '1\\nseed = 3'"),
    ],
)
def test_wrong_overrides(tmp_path, override, text):
    path = tmp_path / "job.toml"
    path.write_text(toml.dump(minimal()))
    with pytest.raises(UsageError) as error:
        load(path, [override])
    assert str(error.value) == text


@pytest.mark.parametrize("job", sorted(JOBS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_jobs_of_the_repository(job):
    assert load(job).run.name == job.stem


@pytest.mark.parametrize("name", ["downpour", "ssp", "easgd", "eamsgd", "aeasgd", "agn"])
def test_algorithms_that_relays_go_with(name):
    algorithm = {"name": name, "wire": "bf16", "wire_fetch": "int8"}
    assert from_dict({**minimal(), "algorithm": algorithm, "topology": {"relay": True}}).topology.relay
