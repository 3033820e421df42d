"""Train a small convolutional network on handwritten digits, on the ranks of an MPI job."""

import torch
from mpi4py import MPI
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

import mpidl


class Digits(Dataset):
    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.labels = torch.tensor(labels)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, stride=2)
        self.last = nn.Linear(32 * 3 * 3, 10)

    def forward(self, images):
        values = torch.relu(self.norm(self.first(images)))
        return self.last(torch.relu(self.second(values)).flatten(1))


def accuracy(network, data):
    network.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in DataLoader(data, batch_size=256):
            correct += (network(images).argmax(1) == labels).sum().item()
    return correct / len(data)


def main():
    torch.manual_seed(0)
    train, test = random_split(Digits(), [1437, 360])
    network = Network()
    loss_function = nn.CrossEntropyLoss()
    data, rule = mpidl.Indexed(train, test), mpidl.Adam(1e-3)
    mpidl.train(network, data, loss=loss_function, rule=rule, batch=32, epochs=10)  # exits if it is stopped
    if MPI.COMM_WORLD.rank > 0:  # all ranks have the trained network, and one saves it
        return
    print(f"test accuracy {accuracy(network, test):.4f}")
    torch.save(network.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
