"""A deep learning recommendation model in PyTorch; see torch_clicks.toml."""

import torch
from torch import nn

NUMBERS, FEATURES, DIMENSION = 13, 26, 16
#: Ids of all features together, as of jobs/clicks.py.
IDS = 10_000_000


class Dlrm(nn.Module):
    """DLRM (Naumov et al. 2019): a bottom and a top of dense layers, and products of all pairs of vectors between them.

    Inputs are (n, 39) int64: 13 numbers, then the ids of 26 features, all in one table.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, DIMENSION), nn.ReLU())
        # A tensor that repeats one number takes no memory: the rows are made on the servers, and of these values only
        # the standard deviation counts. nn.Embedding(IDS, DIMENSION, sparse=True) would need 640 MB for a moment.
        weight = torch.full((1, 1), 0.01).expand(IDS, DIMENSION)
        self.rows = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
        vectors = 1 + FEATURES
        self.top = nn.Sequential(nn.Linear(DIMENSION + vectors * (vectors - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def lookups(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the ids that each table will look up, so that their rows are fetched while other batches compute."""
        return {"rows": inputs[:, NUMBERS:]}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        numbers = self.bottom(torch.log1p(inputs[:, :NUMBERS].float()))
        vectors = torch.cat([numbers[:, None], self.rows(inputs[:, NUMBERS:])], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([numbers, products[:, self.pairs[0], self.pairs[1]]], 1))


def dlrm(dataset, seed):
    """Return the model, with the initial values that a seed determines."""
    torch.manual_seed(seed)
    return Dlrm()
