"""Names and shapes of other packages, and keys in the wrong place: one line has the right form."""

from types import SimpleNamespace

import numpy as np
import pytest

import mpidl

NETWORK = {"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}}


def line(action):
    with pytest.raises(mpidl.UsageError) as error:
        action()
    return str(error.value)


@pytest.mark.parametrize(
    ("make", "right"),
    [
        (lambda: mpidl.Adam(lr=1e-3), "Adam.lr: unknown key, did you mean 'rate'?"),
        (lambda: mpidl.Adam(0.1, eps=1e-3), "Adam.eps: unknown key, did you mean 'epsilon'?"),
        (lambda: mpidl.rules.Rmsprop(learning_rate=1), "Rmsprop.learning_rate: unknown key, did you mean 'rate'?"),
        (lambda: mpidl.Sgd(0.1, momentum=0.9), "Sgd.momentum: unknown key; it belongs to Momentum, Nesterov"),
        (lambda: mpidl.Sgd(weight_decay=0.9), "Sgd.weight_decay: unknown key; it belongs to Adamw"),
        (lambda: mpidl.Downpour(n_psh=2), "Downpour.n_psh: unknown key, did you mean 'n_push'?"),
        (lambda: mpidl.algorithms.Easgd(n_push=2), "Easgd.n_push: unknown key; it belongs to Downpour"),
        (lambda: mpidl.Dense(10, activaton="relu"), "Dense.activaton: unknown key, did you mean 'activation'?"),
        (lambda: mpidl.data.Augmentation(flip=True), "Augmentation.flip: unknown key; known: "),
    ],
)
def test_a_key_that_a_class_lacks(make, right):
    assert line(make).startswith(right)


LR = "mpidl.train: unknown keyword 'lr', expected the rate of a rule, such as rule=mpidl.Adagrad(0.01)"


class Loader:
    """As a torch.utils.data.DataLoader, it has batches."""

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"lr": 0.1}, LR),
        ({"rule": mpidl.Adam(0.1), "lr": 0.1}, LR),
        ({"rule": {"rule": "sgd", "rate": 0.1}, "lr": 0.2}, LR),
        ({"rule": "sgd", "lr": 0.2, "learning_rate": 0.2}, LR),
        ({"rule": "adam", "lr": -1}, "server.rate: expected float > 0, found -1"),
        ({"rule": "adam", "lr": "fast"}, "server.rate: expected float"),
        ({"algorithm": "diloco", "rule": "nesterov", "lr": 0.1}, "lr: ambiguous, diloco has an inner rate and an"),
        ({"optimizer": 3}, "mpidl.train: unknown keyword 'optimizer', expected a rule, such as rule=mpidl.Adam(0.001)"),
        ({"weight_decay": 0.1}, "mpidl.train: unknown keyword 'weight_decay', expected l2, or a group, such as groups"),
        ({"scheduler": 3}, "mpidl.train: unknown keyword 'scheduler', expected a schedule, such as rate={'schedule': "),
        ({"batch_size": 3}, "mpidl.train: unknown keyword 'batch_size', did you mean 'batch'?"),
        ({"num_epochs": 3}, "mpidl.train: unknown keyword 'num_epochs', did you mean 'epochs'?"),
        ({"rate": "cosine"}, "rate: found 'cosine', expected a mapping, such as {'schedule': 'cosine'} or "),
        ({"rate": lambda step: 0.1}, "rate: found a function, expected a mapping, such as {'schedule': 'cosine'} or "),
        ({"rate": 0.1}, "rate: found 0.1, expected a schedule, such as {'schedule': 'cosine'}; rates themselves are"),
        ({"rule": "Adam "}, "server.rule: unknown name 'Adam ', did you mean 'adam'?"),
        ({"algorithm": "Downpour"}, "algorithm.name: unknown name 'Downpour', did you mean 'downpour'?"),
        ({"data": Loader()}, "data: expected a Dataset or a source, such as mpidl.Digits(), mpidl.Arrays((x, y), "),
        ({"model": mpidl.Network}, "model: found the class Network, expected one of its objects"),
    ],
)
def test_arguments_of_a_script(arguments, right, tmp_path):
    given = {"model": SimpleNamespace(), "data": mpidl.Digits(), "dir": tmp_path} | arguments
    assert line(lambda: mpidl.train(**given)).startswith(right)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"rule": "adam", "lr": 0.003}, mpidl.Adam(0.003)),
        ({"rule": "sgd", "learning_rate": np.float32(0.5)}, mpidl.Sgd(0.5)),
        ({"rule": {"rule": "momentum", "momentum": 0.5}, "lr": 0.1}, mpidl.Momentum(0.1, 0.5)),
        ({"rule": "default", "lr": 0.1}, mpidl.Adagrad(0.1)),
    ],
)
def test_lr_is_the_rate_of_a_rule_beside_it(tmp_path, arguments, rule):
    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    mpidl.train(network, mpidl.Digits(), steps=1, dir=tmp_path, **arguments)
    assert mpidl.config.load(tmp_path / "run" / "config.toml").rule == rule


def test_optimisers_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch")
    module, optim = torch.nn.Linear(64, 10), torch.optim
    parameters = list(module.parameters())
    for found, right in [
        (optim.SGD(parameters, 0.1), "rule=mpidl.rules.Sgd(0.1)"),
        (optim.SGD(parameters, 0.1, momentum=0.5), "rule=mpidl.rules.Momentum(0.1, 0.5)"),
        (optim.SGD(parameters, 0.1, momentum=0.5, nesterov=True), "rule=mpidl.rules.Nesterov(0.1, 0.5)"),
        (optim.AdamW(parameters, 0.003), "rule=mpidl.rules.Adamw(0.003)"),
        (optim.RMSprop(parameters, 0.003, momentum=0.5), "rule=mpidl.rules.Rmsprop(0.003)"),
        (optim.Adam, "rule=mpidl.rules.Adam()"),
        (optim.LBFGS(parameters), "algorithm=mpidl.Sandblaster()"),
        (
            optim.Rprop(parameters),
            "a rule of mpidl.rules, one of Sgd, Momentum, Nesterov, Adagrad, Rmsprop, Adam, Adamw, Muon",
        ),
    ]:
        text = line(lambda found=found: mpidl.train(module, mpidl.Digits(), rule=found, dir=tmp_path))
        assert text.startswith(f"rule: expected {right}, found ")
    text = line(lambda: mpidl.train(module, mpidl.Digits(), algorithm=optim.Adam(parameters), dir=tmp_path))
    assert text.startswith("algorithm: expected rule=mpidl.rules.Adam(0.001), found ")
    text = line(lambda: mpidl.train(module, mpidl.Digits(), loss=torch.nn.CrossEntropyLoss, dir=tmp_path))
    assert text == "model.loss: found the class CrossEntropyLoss, expected one of its objects"


def test_a_subclass_with_a_constructor_of_its_own_takes_its_arguments():
    class Own(mpidl.Sgd):
        def __init__(self, mine):
            super().__init__(mine)

    assert Own(mine=0.5).rate == np.float64(0.5)
