"""Classify rows of a table; the rate falls on a plateau, and training stops early."""

import torch
from sklearn.datasets import make_classification
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import mpidl


def tables():
    inputs, labels = make_classification(3000, 20, n_informative=8, n_classes=3, class_sep=1.5, random_state=0)
    inputs = (inputs - inputs[:2000].mean(0)) / inputs[:2000].std(0)
    rows = torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)
    parts = slice(2000), slice(2000, 2500), slice(2500, None)
    return [TensorDataset(*(each[part] for each in rows)) for part in parts]


def network():
    return nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )


def evaluate(model, data):
    model.eval()
    inputs, labels = data.tensors
    with torch.no_grad():
        outputs = model(inputs)
    return functional.cross_entropy(outputs, labels).item(), (outputs.argmax(1) == labels).float().mean().item()


def main():
    torch.manual_seed(0)
    train, validation, test = tables()
    model = network()
    data = mpidl.Indexed(train, test, validation=validation)
    rule, rate = mpidl.rules.Adamw(3e-3, weight_decay=1e-4), {"schedule": "plateau", "factor": 0.3, "patience": 2}
    run = mpidl.train(model, data, loss="cross_entropy", rule=rule, rate=rate, patience=6, batch=64, epochs=40)
    mpidl.evaluate(run["run_dir"], model, data, step="best")
    print(f"accuracy {evaluate(model, test)[1]:.4f}")


if __name__ == "__main__":
    main()
