"""What one worker does, as a plain loop."""

from mpidl.data import Portions


def serial_sgd(problem, rate, batch=8, epochs=2):
    """Train a problem's model by stochastic gradient descent on its portions with the seed 7; return the parameters."""
    model, split = problem
    portions = Portions(split.samples, batch, batch, seed=7)
    for number in range(epochs * portions.per_epoch):
        for indices in portions.batches(number):
            model.parameters -= rate * model.loss_and_gradient(split.gather(indices))[1]
    return model.parameters
