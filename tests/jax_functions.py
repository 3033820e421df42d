"""A small perceptron in JAX for the embedded digits: its parameters and its loss."""

import jax
import jax.numpy as jnp
import numpy as np


def mlp(seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    sizes = [(64, 33), (33, 10)]
    return {
        "layers": [
            {"weight": rng.normal(0, 0.1, size).astype(dtype), "bias": rng.normal(0, 0.1, size[1]).astype(dtype)}
            for size in sizes
        ]
    }


def outputs(parameters, inputs, key=None, dropout=0.0):
    first, second = parameters["layers"]
    hidden = jax.nn.relu(inputs.reshape(len(inputs), -1) @ first["weight"] + first["bias"])
    if key is not None:
        hidden *= jax.random.bernoulli(key, 1 - dropout, hidden.shape) / (1 - dropout)
    return hidden @ second["weight"] + second["bias"]


def cross_entropy(values, targets):
    return -jnp.take_along_axis(jax.nn.log_softmax(values), targets[:, None], 1).mean()


def loss(parameters, batch):
    inputs, targets = batch
    values = outputs(parameters, inputs)
    return cross_entropy(values, targets), values


def loss_with_dropout(parameters, batch, key=None):
    inputs, targets = batch
    values = outputs(parameters, inputs, key, dropout=0.3)
    return cross_entropy(values, targets), values


def plain(parameters, batch):
    return loss(parameters, batch)[0]
