"""When the stages of a pipeline do what: bubbles against the papers' formulas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.partition.schedules import SCHEDULES, Backward, Forward
from mpidl.partition.timeline import Durations, timeline

GPIPE, ALTERNATING, ZERO_BUBBLE = (SCHEDULES[name] for name in ("gpipe", "one_forward_one_backward", "zero_bubble"))
EQUAL = Durations(1, 1, 1)
SECONDS = st.floats(0.125, 8)


@given(st.integers(1, 9), st.integers(1, 20), SECONDS, SECONDS, SECONDS)
def test_gpipes_bubble(stages, micro_batches, forward, inputs, weights):
    found = timeline(GPIPE, micro_batches, [Durations(forward, inputs, weights)] * stages)
    idle = found.seconds * (stages - 1) / (micro_batches + stages - 1)
    assert found.idle == pytest.approx([idle] * stages)


@given(st.integers(1, 9), st.integers(0, 12), SECONDS, SECONDS, SECONDS)
def test_1f1b_idles_as_long_as_gpipe(stages, more, forward, inputs, weights):
    durations = [Durations(forward, inputs, weights)] * stages
    found = timeline(ALTERNATING, stages + more, durations)
    assert found.idle == pytest.approx([(stages - 1) * (forward + inputs + weights)] * stages)


@given(st.integers(1, 9), st.integers(0, 12), SECONDS, SECONDS, st.floats(0.125, 1))
def test_zb_h1s_bubble_where_the_weights_take_no_longer_than_the_other_parts(stages, more, forward, inputs, share):
    # Table 1 of Qi et al. 2024.
    durations = Durations(forward, inputs, share * min(forward, inputs))
    found = timeline(ZERO_BUBBLE, stages + more, [durations] * stages)
    expected = (stages - 1) * (forward + inputs - durations.backward_weights)
    assert found.idle == pytest.approx([expected] * stages)


@given(st.integers(2, 9), st.integers(0, 12), SECONDS, SECONDS, st.floats(1.0625, 8))
def test_weights_that_take_longer_fill_no_more_of_zb_h1s_bubble(stages, more, forward, inputs, share):
    durations = Durations(forward, inputs, share * min(forward, inputs))
    found = timeline(ZERO_BUBBLE, stages + more, [durations] * stages)
    assert found.idle == pytest.approx([(stages - 1) * max(forward, inputs)] * stages)
    assert found.idle[0] > (stages - 1) * (forward + inputs - durations.backward_weights)


@given(st.integers(2, 9), st.integers(0, 30))
def test_where_the_three_parts_take_equal_time_zero_bubble_idles_a_third_of_1f1b(stages, more):
    ours = timeline(ZERO_BUBBLE, stages + more, [EQUAL] * stages)
    theirs = timeline(ALTERNATING, stages + more, [EQUAL] * stages)
    assert 3 * max(ours.idle) == max(theirs.idle)
    assert 3 * sum(ours.idle) <= sum(theirs.idle)


def test_what_comes_from_another_stage_travels():
    found = timeline(GPIPE, 1, [Durations(1, 2, 4), Durations(8, 16, 32)], transfer=0.5)
    (first, back), (second, middle) = found.events
    assert (first.start, first.stop, second.start, second.stop) == (0, 1, 1.5, 9.5)
    assert (middle.start, middle.stop, back.start, back.stop) == (9.5, 57.5, 58, 64)
    assert found.seconds == back.stop == 64
    assert found.idle == (64 - 7, 64 - 56)


def test_the_slowest_stage_sets_the_pace():
    durations = [EQUAL, Durations(3, 3, 3), EQUAL]
    found = timeline(ALTERNATING, 20, durations)
    assert found.seconds == 1 + 20 * 9 + 2
    assert found.idle[1] == 1 + 2


def test_stages_that_wait_for_each_other_are_an_error():
    def wrong(stage, stages, micro_batches):
        yield from (Backward(0), Forward(0)) if stage else (Forward(0), Backward(0))

    with pytest.raises(ValueError, match=r"stage 0 of 2 never reaches Backward\(micro_batch=0\): a deadlock"):
        timeline(wrong, 1, [EQUAL] * 2)
