"""Threads of a process take turns."""

import threading
import time

import pytest

from mpidl.rma.backoff import Turn


@pytest.fixture
def played():
    """Start threads that take turns; yield the function that starts one, and what they did in order."""
    turn, did, threads = Turn(), [], []

    def play(name, work):
        def run():
            turn.take()
            for _ in work():
                did.append(name)
            turn.leave()

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()

    yield turn, did, play
    for each in threads:
        each.join(60)
        assert not each.is_alive()


def test_others_wait_while_one_has_the_turn_and_come_in_order(played):
    turn, did, play = played
    for name in "abc":
        play(name, lambda: range(1))
        time.sleep(0.02)
    assert did == []
    turn.pass_on()
    assert did == ["a", "b", "c"]
    turn.leave()


def test_only_one_thread_works_at_a_time(played):
    turn, did, play = played
    inside = []

    def work():
        for _ in range(200):
            inside.append(1)
            assert len(inside) == 1
            time.sleep(0)
            inside.pop()
            yield
            turn.pass_on()

    for name in range(4):
        play(name, work)
    with turn.left():
        time.sleep(0.1)
    while len(did) < 800:
        turn.pass_on()
    assert sorted(did) == sorted([name for name in range(4) for _ in range(200)])
    turn.leave()


def test_who_leaves_the_turn_to_wait_does_not_keep_others_from_it(played):
    turn, did, play = played
    answered = threading.Event()

    def work():
        answered.set()
        yield

    play("answers", work)
    with turn.left():
        assert answered.wait(60)
    turn.leave()
    assert did == ["answers"]
