"""Modules of sequences: embeddings, recurrent layers and attention."""

import torch
from torch import nn
from torch.nn import functional

from zoo.cases import CLASSES, IDS, head, zoo


class Last(nn.Module):
    """The first of several results, at the last place of a sequence."""

    def forward(self, results):
        return (results[0] if isinstance(results, tuple) else results)[:, -1]


# Sequences.


@zoo("ids")
def embedding():
    return head(10, nn.Embedding(IDS, 2, padding_idx=1), nn.Flatten())


@zoo("ids")
def embedding_with_norm():
    return head(10, nn.Embedding(IDS, 2, max_norm=1.0), nn.Flatten())


@zoo("ids")
def embedding_bag():
    return head(4, nn.EmbeddingBag(IDS, 4, mode="mean"))


@zoo("sequence")
def lstm():
    return head(3, nn.LSTM(4, 3, num_layers=2, dropout=0.3, batch_first=True), Last())


@zoo("sequence")
def projected_lstm():
    return head(4, nn.LSTM(4, 3, proj_size=2, bidirectional=True, batch_first=True), Last())


@zoo("sequence")
class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.start, self.last = nn.LSTMCell(4, 3), nn.Parameter(torch.zeros(2, 3)), nn.Linear(3, CLASSES)

    def forward(self, inputs):
        state = tuple(each.expand(len(inputs), 3) for each in self.start)
        for step in inputs.unbind(1):
            state = self.cell(step, state)
        return self.last(state[0])


@zoo("sequence")
class Attention(nn.Module):
    """Attention with a mask, with keys and values of other widths."""

    def __init__(self):
        super().__init__()
        self.attention, self.last = (
            nn.MultiheadAttention(4, 2, 0.1, kdim=3, vdim=2, batch_first=True),
            nn.Linear(4, CLASSES),
        )
        self.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1))

    def forward(self, inputs):
        found, _ = self.attention(inputs, inputs[..., :3], inputs[..., :2], attn_mask=self.mask)
        return self.last(found.mean(1))


@zoo("sequence")
class Rotary(nn.Module):
    """Attention with rotated positions, and a gated network, as language models have them."""

    def __init__(self):
        super().__init__()
        self.both, self.gate, self.up = nn.Linear(4, 12, bias=False), nn.Linear(4, 6), nn.Linear(4, 6)
        self.norm, self.down, self.last = nn.RMSNorm(4), nn.Linear(6, 4), nn.Linear(4, CLASSES)
        angles = torch.arange(5)[:, None] / 10 ** torch.arange(2)
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def turned(self, values):
        first, second = values.chunk(2, -1)
        cosine, sine = self.turns
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)

    def forward(self, inputs):
        query, key, value = self.both(self.norm(inputs)).chunk(3, -1)
        found = functional.scaled_dot_product_attention(self.turned(query), self.turned(key), value, is_causal=True)
        values = self.norm(inputs + found)
        return self.last(self.down(functional.silu(self.gate(values)) * self.up(values))[:, -1])


@zoo("sequence")
def encoder():
    layer = nn.TransformerEncoderLayer(4, 2, 6, 0.1, batch_first=True, norm_first=True)
    return head(4, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Last())
