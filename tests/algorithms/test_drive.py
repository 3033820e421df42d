"""The loop that carries out the requests of a generator, without an engine."""

from dataclasses import dataclass

import pytest

from mpidl.algorithms.requests import drive


@dataclass
class Add:
    terms: tuple


@dataclass
class Wait:
    times: int


def add(request):
    yield from ()
    return sum(request.terms)


def wait(request):
    for time in range(request.times):
        yield f"waiting {time}"


def finish(loop):
    """Resume to the end; return what was yielded, and the result."""
    seen = []
    while True:
        try:
            seen.append(next(loop))
        except StopIteration as end:
            return seen, end.value


def test_each_request_is_answered_by_the_action_of_its_type():
    answers = []

    def requests():
        answers.append((yield Add((1, 2))))
        answers.append((yield Wait(2)))
        answers.append((yield Add((answers[0], 4))))
        return "done"

    assert finish(drive(requests(), {Add: add, Wait: wait})) == (["waiting 0", "waiting 1"], "done")
    assert answers == [3, None, 7]


def test_a_request_is_made_only_when_the_one_before_is_answered():
    made = []

    def requests():
        for number in range(3):
            made.append(number)
            yield Wait(1)

    loop = drive(requests(), {Wait: wait})
    for number in range(3):
        next(loop)
        assert made == list(range(number + 1))


def test_what_is_thrown_at_a_wait_reaches_the_action():
    interrupted = []

    def watched(request):
        try:
            yield "waiting"
        except KeyboardInterrupt:
            interrupted.append(request)
            raise

    loop = drive(iter_once(Wait(1)), {Wait: watched})
    next(loop)
    with pytest.raises(KeyboardInterrupt):
        loop.throw(KeyboardInterrupt())
    assert interrupted == [Wait(1)]


def iter_once(request):
    yield request


def test_a_request_without_an_action_is_an_error():
    with pytest.raises(KeyError):
        next(drive(iter_once(Add(())), {Wait: wait}))
