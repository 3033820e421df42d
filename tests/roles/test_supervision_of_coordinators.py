"""What a supervisor decides where a coordinator drives the algorithm."""

from supervised import (
    INTERRUPTED,
    LAST_TEST,
    SAMPLES,
    START,
    STOP_REACHED,
    TEST,
    aiming_at,
    evaluated,
    iterated,
    looked,
    saved,
    script,
    supervisor,
    trained,
)

from mpidl.engines.totals import Totals
from mpidl.roles.events import Finish, Log, Save, Saved, Signalled, Started, Stop, Trained
from mpidl.storage.position import Position


def at(batches, samples, number):
    return Save(position=Position(batches, samples, samples / SAMPLES, 0, [], {"iteration": number}))


def test_a_coordinator_saves_and_tests_after_iterations_only():
    script(
        supervisor(epochs=2, coordinated=True),
        (Started(), [Save(position=START)]),
        (Saved(1.0, 0), [saved(0)]),
        (looked(20.0, 5), []),
        (iterated(20.0, 1, 60), [at(12, 60, 1)]),
        (iterated(40.0, 2, 120, backups=3), [Log("backups", {"iteration": 2, "backups": 3, "won": 0}), TEST]),
        (evaluated(39.0, 0.5), []),
        (Saved(41.0, 12), [saved(12)]),
        (iterated(51.0, 3, 180), [at(36, 180, 3)]),
        (Saved(52.0, 36), [saved(36)]),
        (iterated(53.0, 4, 200), [Stop()]),  # two epochs: no test before the final one
        (trained(54.0, 40), [at(40, 200, 4)]),
        (Saved(55.0, 40), [saved(40), LAST_TEST]),
        (evaluated(54.0, 0.5), [Finish(False, None)]),
    )


def test_a_resumed_coordinator_counts_the_epochs_and_the_seconds_before():
    start = Position(30, 150, 1.5, 0, [], {"iteration": 3}, 7.0)
    (save,) = supervisor(start, coordinated=True).handle(Started())
    assert save == Save(position=start)
    end = Totals(9.0, samples=300, batches=30, first_fetch=4.0)
    script(
        supervisor(start, epochs=3, resumed=True, coordinated=True),
        (iterated(1.0, 3, 20), []),
        (iterated(2.0, 4, 60), [TEST]),
        (iterated(3.0, 5, 150), [Stop()]),
        (Trained(end), [Save(position=Position(60, 300, 3.0, 0, [], {"iteration": 5}, 7.0 + end.seconds))]),
    )
    assert end.seconds > 0


def test_an_interrupted_coordinator_completes_its_iteration():
    script(
        supervisor(resumed=True, coordinated=True),
        (Signalled(), [INTERRUPTED]),
        (iterated(1.0, 1, 110), [Stop()]),
        (trained(2.0, 22), [at(22, 110, 1)]),
        (Saved(3.0, 22), [saved(22), Finish(True, None)]),
    )


def test_an_interrupted_coordinator_lets_a_checkpoint_be_written():
    script(
        supervisor(resumed=True, coordinated=True),
        (iterated(10.0, 1, 60), [at(12, 60, 1)]),
        (Signalled(), [INTERRUPTED]),
        (iterated(11.0, 2, 90), [Stop()]),
        (trained(12.0, 18), []),
        (Saved(13.0, 12), [saved(12), at(18, 90, 2)]),
        (Saved(14.0, 18), [saved(18), Finish(True, None)]),
    )


def test_a_coordinator_that_reaches_the_target_stops():
    script(
        supervisor(coordinated=True, resumed=True, goal=aiming_at(0.8)),
        (iterated(1.0, 1, 100), [TEST]),
        (evaluated(1.0, 0.8), STOP_REACHED),
    )
