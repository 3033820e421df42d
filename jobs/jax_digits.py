"""A small network in JAX: a pytree of parameters and a loss function."""

import jax
import jax.numpy as jnp

from mpidl.jax import JaxModel


def outputs(parameters, inputs):
    """Return the logits (n, classes) of images (n, 8, 8)."""
    hidden = jax.nn.relu(inputs.reshape(len(inputs), -1) @ parameters["first"]["weight"] + parameters["first"]["bias"])
    return hidden @ parameters["last"]["weight"] + parameters["last"]["bias"]


def loss(parameters, batch):
    """Return the mean cross-entropy of a batch, and the logits, for the accuracy."""
    inputs, targets = batch
    logits = outputs(parameters, inputs)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1).mean(), logits


def layer(key, inputs, units):
    """Return the first values of a dense layer."""
    return {"weight": jax.random.normal(key, (inputs, units)) * (2 / inputs) ** 0.5, "bias": jnp.zeros(units)}


def network(dataset, seed):
    """Return the model for a data set."""
    first, last = jax.random.split(jax.random.key(seed))
    parameters = {"first": layer(first, 64, 128), "last": layer(last, 128, dataset.classes)}
    return JaxModel(parameters, loss, has_aux=True)
