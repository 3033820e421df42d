"""Segments of a vector that a rule updates in ways of their own."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.parameters import Range, chunks
from mpidl.rules import RULES, Adamw, Sgd, TensorRule
from mpidl.rules.segments import Segment, SegmentedRule, unfrozen

SIZE = 60
SEGMENTS = [
    Segment(Range(3, 9), rate=0.5),
    Segment(Range(9, 20), weight_decay=0.3),
    Segment(Range(26, 31), frozen=True),
    Segment(Range(40, 52), rate=0.0),
]
STATISTICS = [Range(21, 24), Range(31, 33)]


def in_pieces(rule, cuts, segments, sparse=False, weight=1.0):
    """Make three steps of a vector in pieces; return all that it and the states are then."""
    random = np.random.default_rng(5)
    parameters, state = random.normal(size=SIZE), rule.init(np.zeros(SIZE))
    pieces = [(slice(*each), SegmentedRule(rule, each, STATISTICS, segments)) for each in cuts]
    for step in range(1, 4):
        gradient = random.normal(size=SIZE) * (random.random(SIZE) < 0.8)
        for own, each in pieces:
            each.update(parameters[own], tuple(v[own] for v in state), gradient[own], step, 0.1, sparse, weight)
    return np.array([parameters, *state])


@st.composite
def segments(draw):
    """Draw ascending segments that keep clear of the statistics."""
    ends = sorted(draw(st.sets(st.sampled_from([*range(22), 24, *range(25, 32), *range(33, 61)]))))
    found = []
    for start, stop in itertools.pairwise(ends):
        if any(Range(start, stop).intersect(each) for each in STATISTICS) or draw(st.booleans()):
            continue
        decay = draw(st.sampled_from([None, 0.0, 0.2]))
        found.append(Segment(Range(start, stop), draw(st.sampled_from([0.0, 0.5, 1.0])), decay, draw(st.booleans())))
    return found


@pytest.mark.parametrize("name", RULES)
@given(segments=segments(), size=st.integers(1, SIZE), sparse=st.booleans())
def test_results_do_not_depend_on_how_the_vector_is_divided(name, segments, size, sparse):
    rule, whole = RULES[name](), Range(0, SIZE)
    expected = in_pieces(rule, [whole], segments, sparse)
    assert in_pieces(rule, chunks(whole, size), segments, sparse).tobytes() == expected.tobytes()
    before = np.random.default_rng(5).normal(size=SIZE)
    for part in (slice(*each.range) for each in segments if each.frozen):
        assert expected[0, part].tobytes() == before[part].tobytes()


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not issubclass(rule, TensorRule)])
def test_each_segment_is_updated_as_by_a_rule_of_its_own(name):
    rule, whole = RULES[name](), Range(0, SIZE)
    found, plain = in_pieces(rule, [whole], SEGMENTS), in_pieces(rule, [whole], ())
    random = np.random.default_rng(5)
    alone, state = random.normal(size=SIZE), rule.init(np.zeros(SIZE))
    for step in range(1, 4):
        gradient = random.normal(size=SIZE) * (random.random(SIZE) < 0.8)
        slow, decaying = slice(3, 9), slice(9, 20)
        rule.update(alone[slow], tuple(v[slow] for v in state), gradient[slow], step, 0.05)
        own = [alone[decaying], tuple(v[decaying] for v in state)]
        if name == "adamw":
            Adamw(weight_decay=0.3).update(*own, gradient[decaying], step, 0.1)
        else:
            rule.update(*own, gradient[decaying] + 0.3 * alone[decaying], step, 0.1)
    assert found[0, 3:20].tobytes() == alone[3:20].tobytes()
    assert found[:, 20:26].tobytes() == plain[:, 20:26].tobytes()
    assert found[:, 52:].tobytes() == plain[:, 52:].tobytes()
    before = np.random.default_rng(5).normal(size=SIZE)
    assert found[0, 26:31].tobytes() == before[26:31].tobytes()
    assert found[0, 40:52].tobytes() == before[40:52].tobytes()
    assert not np.array_equal(plain[0, 40:52], before[40:52])


@pytest.mark.parametrize("segments", [(), SEGMENTS])
def test_a_weight_is_that_of_each_segment_and_of_no_statistic(segments):
    whole, slow = Range(0, SIZE), [segment._replace(rate=segment.rate / 4) for segment in segments]
    weighted = in_pieces(Sgd(), [whole], segments, weight=0.25)
    if segments:
        assert weighted[0, 3:20] == pytest.approx(in_pieces(Sgd(), [whole], slow)[0, 3:20], rel=1e-14)
    for start, stop in STATISTICS:
        assert weighted[0, start:stop].tobytes() == in_pieces(Sgd(), [whole], segments)[0, start:stop].tobytes()
    assert not np.array_equal(weighted[0, 52:], in_pieces(Sgd(), [whole], segments)[0, 52:])


def test_what_has_no_segments_is_one_call(monkeypatch):
    calls = []
    monkeypatch.setattr(Sgd, "update", lambda self, parameters, *rest, **more: calls.append(parameters.size))
    vector = np.zeros(10)
    for whole in (Range(0, 10), Range(10, 20), Range(30, 40), Range(52, 62)):
        SegmentedRule(Sgd(), whole, (), SEGMENTS).update(vector, (), vector, 1, 0.1)
    assert calls == [3, 6, 1, 10, 9, 10]


def test_what_is_not_frozen_is_relative_to_the_range():
    assert unfrozen(SEGMENTS, Range(28, 50)) == [slice(3, 12), slice(12, 22)]
    assert unfrozen(SEGMENTS, Range(27, 30)) == []
    assert unfrozen((), Range(5, 9)) == [slice(0, 4)]
