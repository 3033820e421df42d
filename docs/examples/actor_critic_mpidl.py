"""Train an actor and a critic to catch balls that fall, on the ranks of an MPI job."""

import torch
from mpi4py import MPI
from torch import nn
from torch.distributions import Categorical
from torch.nn.functional import mse_loss, one_hot

import mpidl

ROWS, COLUMNS, GAMES = 8, 9, 32


class Catch:
    """Games in which a ball falls row by row, and a paddle below moves left, stays or moves right to catch it."""

    def __init__(self, games):
        self.row = 0
        self.ball, self.paddle = torch.randint(COLUMNS, (2, games))

    def seen(self):
        rows = torch.full((len(self.ball), 1), self.row / ROWS)
        return torch.cat([one_hot(self.ball, COLUMNS), one_hot(self.paddle, COLUMNS), rows], 1)

    def move(self, moves):
        """Move the paddles by -1, 0 or 1, and return whether the game is over."""
        self.paddle = (self.paddle + moves).clamp(0, COLUMNS - 1)
        self.row += 1
        return self.row == ROWS

    def scores(self):
        return 2.0 * (self.paddle == self.ball) - 1.0


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * COLUMNS + 1, 64), nn.ReLU())
        self.actor, self.critic = nn.Linear(64, 3), nn.Linear(64, 1)

    def forward(self, seen):
        values = self.body(seen)
        return Categorical(logits=self.actor(values)), self.critic(values).squeeze(1)


def play(network, games=GAMES):
    """Play games to their end; return the loss of the actor and the critic, and the mean score."""
    catch, steps, over = Catch(games), [], False
    while not over:
        policy, value = network(catch.seen())
        move = policy.sample()
        steps.append((policy.log_prob(move), policy.entropy(), value))
        over = catch.move(move - 1)
    log_probabilities, entropies, values = (torch.stack(each) for each in zip(*steps, strict=True))
    scores = catch.scores().expand(values.shape)
    actor = -(log_probabilities * (scores - values).detach()).mean() - 0.01 * entropies.mean()
    return actor + 0.5 * mse_loss(values, scores), scores.mean()


def train(replica):
    for _ in replica.share(range(1500)):
        loss, _ = play(replica.model)
        loss.backward()
        replica.step(loss)


def main():
    torch.manual_seed(0)
    network = Network()
    mpidl.loop(train, network, rule=mpidl.Adam(3e-3), steps=1500)
    if MPI.COMM_WORLD.rank > 0:  # all ranks have the trained network
        return
    print(f"mean score {play(network, games=10_000)[1]:.3f}")


if __name__ == "__main__":
    main()
