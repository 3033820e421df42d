"""Classify rows of a table; the rate falls on a plateau, and training stops early."""

import torch
from sklearn.datasets import make_classification
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


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
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=2)
    best = best_epoch = 0
    for epoch in range(40):
        model.train()
        for inputs, labels in DataLoader(train, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        loss, _ = evaluate(model, validation)
        scheduler.step(loss)
        if not epoch or loss < best:
            best, best_epoch = loss, epoch
            torch.save(model.state_dict(), "tabular.pt")
        if epoch - best_epoch == 6:
            break
    model.load_state_dict(torch.load("tabular.pt"))
    print(f"accuracy {evaluate(model, test)[1]:.4f}")


if __name__ == "__main__":
    main()
