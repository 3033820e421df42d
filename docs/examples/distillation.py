"""Teach a small network what a large one knows of handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from torch.utils.data import DataLoader, TensorDataset, random_split

TEMPERATURE = 3.0


def dense(units):
    return nn.Sequential(nn.Linear(64, units), nn.ReLU(), nn.Linear(units, 10))


def trained_teacher(data):
    teacher = dense(256)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-3)
    for _ in range(20):
        for images, labels in DataLoader(data, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(teacher(images), labels).backward()
            optimizer.step()
    return teacher.requires_grad_(False).eval()


def distance(student, teacher, images):
    """Return how far the student's probabilities are from the teacher's."""
    found, wanted = (log_softmax(network(images) / TEMPERATURE, 1) for network in (student, teacher))
    return kl_div(found, wanted, log_target=True, reduction="batchmean") * TEMPERATURE**2


def accuracy(network, data):
    images, labels = next(iter(DataLoader(data, batch_size=len(data))))
    return (network(images).argmax(1) == labels).float().mean().item()


def main():
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    train, test = random_split(data, [1437, 360])
    teacher, student = trained_teacher(train), dense(16)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    for _ in range(30):
        for images, labels in DataLoader(train, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = distance(student, teacher, images) + 0.1 * cross_entropy(student(images), labels)
            loss.backward()
            optimizer.step()
    print(f"test accuracy {accuracy(student, test):.4f}, of the teacher {accuracy(teacher, test):.4f}")


if __name__ == "__main__":
    main()
