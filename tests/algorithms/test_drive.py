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


def iter_once(request):
    yield request


def test_a_request_without_an_action_is_an_error():
    with pytest.raises(KeyError):
        next(drive(iter_once(Add(())), {Wait: wait}))
