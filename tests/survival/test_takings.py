"""Workers die while they take portions, in every order of what they and others do: each portion counts once."""

import pytest
from interleavings import Layout, Program, Situation, faults
from settling import Choices, Settling, explore

from mpidl.rma import taken_portions, takings
from mpidl.transport import protocol


@pytest.fixture
def remember(monkeypatch):
    """Return a function that sets how many portions workers remember."""

    def remember(count):
        for module in (protocol, takings, taken_portions):
            for name, value in {"TAKINGS": count, "TAKINGS_ROW": 1 + 3 * count, "GIVEN_BACK": 4}.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, value)

    return remember


def program(takes, portions):
    return Program(Layout(len(takes) + 1), portions, takes)


def check(first):
    found = [faults(end) for end in explore(first)]
    assert len(found) > 1
    assert {*found} == {None}


@pytest.mark.parametrize("deaths", [{"deaths": 2}, pytest.param({"again": 1}, marks=pytest.mark.long)])
def test_workers_and_settlements_die(remember, deaths):
    remember(2)
    check(Situation(program((1, 1), 2), **deaths))


def test_no_more_portions_are_handed_out_meanwhile(remember):
    remember(2)
    check(Situation(program((1,), 2), stops=True))


@pytest.mark.long
def test_a_worker_overwrites_no_note_that_the_settlement_of_another_needs(remember):
    remember(1)
    check(Situation(program((1, 2), 3), mortals=1))


@pytest.mark.long
def test_workers_die_while_they_take_what_another_has_given_back(remember):
    remember(2)
    first = Situation(program((1, 1, 1), 2), deaths=2, mortals=2)
    first.advance(0)
    first.die(0)
    Settling(first, Choices(), 0).run()
    check(first)
