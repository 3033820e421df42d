"""The order of instructions on the stages of a pipeline, and what they keep."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mpidl.partition.schedules import SCHEDULES, Backward, BackwardInputs, BackwardWeights, Forward, slots

COUNTS = st.integers(1, 12)


def orders(schedule, stages, micro_batches):
    return [list(schedule(stage, stages, micro_batches)) for stage in range(stages)]


@given(st.sampled_from([*SCHEDULES.values()]), COUNTS, COUNTS)
def test_each_micro_batch_goes_forward_once_and_then_back_once(schedule, stages, micro_batches):
    for order in orders(schedule, stages, micro_batches):
        places = {(type(each), each.micro_batch): place for place, each in enumerate(order)}
        assert len(places) == len(order)
        whole = {number for kind, number in places if kind is Backward}
        inputs = {number for kind, number in places if kind is BackwardInputs}
        assert inputs == {number for kind, number in places if kind is BackwardWeights}
        assert sorted([*whole, *inputs]) == list(range(micro_batches))
        for number in range(micro_batches):
            first = places[Backward if number in whole else BackwardInputs, number]
            assert places[Forward, number] < first
            assert number in whole or first < places[BackwardWeights, number]


def messages_pass(order_of_stages, rendezvous):
    """Return whether all stages come to the end, of which each sends to the next forward and to the one before back.

    With `rendezvous`, nothing is sent before it is received, and a stage waits for that before it uses memory again.
    """
    stages = len(order_of_stages)
    memory = [slots(order) for order in order_of_stages]
    place, received, sent = [0] * stages, set(), Counter()
    under_way = [[] for _ in range(stages)]
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(order_of_stages):
            if place[stage] == len(order):
                continue
            each = order[place[stage]]
            number, forward = each.micro_batch, isinstance(each, Forward)
            back = isinstance(each, Backward | BackwardInputs)
            source = stage - 1 if forward else stage + 1
            if (forward or back) and 0 <= source < stages:
                if not sent[source, forward, number]:
                    continue
                received.add((source, forward, number))
            same = [message for slot, message in under_way[stage] if slot == memory[stage][number]]
            if rendezvous and forward and not received.issuperset(same):
                continue
            target = stage + 1 if forward else stage - 1
            if (forward or back) and 0 <= target < stages:
                sent[stage, forward, number] = 1
                under_way[stage].append((memory[stage][number], (stage, forward, number)))
            place[stage] += 1
            moved = True
    return place == [len(order) for order in order_of_stages]


@given(st.sampled_from([*SCHEDULES.values()]), COUNTS, COUNTS, st.booleans())
def test_no_stage_waits_for_ever(schedule, stages, micro_batches, rendezvous):
    assert messages_pass(orders(schedule, stages, micro_batches), rendezvous)


def test_stages_that_wait_for_each_other_are_found():
    all_first = [Forward(0), Forward(1), Backward(0), Backward(1)]
    assert not messages_pass([[Forward(0), Backward(0), Forward(1), Backward(1)], all_first], False)


@given(COUNTS, COUNTS)
def test_as_many_micro_batches_are_kept_as_the_papers_say(stages, micro_batches):
    def peaks(schedule):
        return [len(set(slots(order).values())) for order in orders(schedule, stages, micro_batches)]

    assert peaks(SCHEDULES["gpipe"]) == [micro_batches] * stages
    by_stage = [min(micro_batches, stages - stage) for stage in range(stages)]
    assert peaks(SCHEDULES["one_forward_one_backward"]) == by_stage
    assert peaks(SCHEDULES["zero_bubble"]) == [min(micro_batches, stages)] * stages


@given(st.sampled_from([*SCHEDULES.values()]), COUNTS, COUNTS)
def test_micro_batches_that_are_kept_at_once_have_memory_of_their_own(schedule, stages, micro_batches):
    for order in orders(schedule, stages, micro_batches):
        memory, used = slots(order), {}
        for each in order:
            if isinstance(each, Forward):
                assert memory[each.micro_batch] not in used
                used[memory[each.micro_batch]] = each.micro_batch
            else:
                assert used[memory[each.micro_batch]] == each.micro_batch
                if isinstance(each, Backward | BackwardWeights):
                    del used[memory[each.micro_batch]]
        assert not used


def test_four_stages_of_1f1b_as_in_the_papers_figure():
    first, _, _, last = orders(SCHEDULES["one_forward_one_backward"], 4, 6)
    assert first == [
        *map(Forward, range(4)), Backward(0), Forward(4), Backward(1), Forward(5), *map(Backward, range(2, 6)),
    ]  # fmt: skip
    assert last == [kind(number) for number in range(6) for kind in (Forward, Backward)]


def test_four_stages_of_zb_h1_as_in_the_papers_figure():
    first, _, _, last = orders(SCHEDULES["zero_bubble"], 4, 8)
    both = [BackwardInputs(0), BackwardWeights(0), Forward(4), BackwardInputs(1), BackwardWeights(1), Forward(5)]
    assert first[:10] == [*map(Forward, range(4)), *both]
    assert last[:10] == [
        *(kind(number) for number in range(4) for kind in (Forward, BackwardInputs)),
        BackwardWeights(0),
        Forward(4),
    ]
