"""A supervisor, and short names for what it is told and what it answers."""

from mpidl.algorithms.coordination import Iteration
from mpidl.data.schedule import Portions, Schedule
from mpidl.engines.totals import Totals
from mpidl.job.goal import Goal
from mpidl.metrics.figures import Target
from mpidl.roles.events import EvaluationEnded, Iterated, Log, Looked, Save, Stop, Test, TrainingEnded
from mpidl.roles.supervision import Supervisor
from mpidl.storage.position import Position

SAMPLES, BATCH = 100, 10

START = Position(0, 0, 0.0, 0, [])
TEST, LAST_TEST = Test(), Test(final=True)
CHECKPOINT, INTERRUPTED = "checkpoint", Log("interrupted")
SAVE, LAST_SAVE = Save(), Save(last=True)
#: What a run that is `aiming_at` 0.8 answers when that is reached.
REACHED = "the target test_accuracy >= 0.8 is reached"
STOP_REACHED = [Log("stopped", {"why": REACHED}), Stop()]


def supervisor(position=START, epochs=4, **options):
    schedule = Schedule(Portions(SAMPLES, BATCH, 2 * BATCH, seed=0), epochs)
    return Supervisor(schedule, position, **{"now": 0.0, "every": 10.0} | options)


def totals(now, batches):
    return Totals(now, samples=BATCH * batches, batches=batches)


def aiming_at(accuracy):
    """The goal of a run that ends when this test accuracy is reached."""
    return Goal("test_accuracy", lower=False, target=Target("test_accuracy", ">=", accuracy))


def evaluated(seconds, accuracy, loss=0.0, epoch=1.0):
    return EvaluationEnded(seconds, epoch, {"test_loss": loss, "test_accuracy": accuracy})


def looked(now, batches):
    return Looked(totals(now, batches))


def trained(now, batches):
    return TrainingEnded(totals(now, batches))


def iterated(now, number, samples, backups=0):
    """An iteration of Sandblaster that has accrued `samples` samples; workers computed twice as many."""
    counts = {"portions": 5, "backups": backups, "won": 0, "waiting": 0.0}
    iteration = Iteration(number, 0.5, 0.1, 1.0, 1, number, samples, **counts, state={"iteration": number})
    return Iterated(totals(now, 2 * samples // BATCH), iteration)


def script(supervisor, *steps):
    """Tell events in turn and compare the instructions after each."""
    for event, instructions in steps:
        assert supervisor.handle(event) == instructions, event


def saved(step):
    return Log(CHECKPOINT, {"step": step})
