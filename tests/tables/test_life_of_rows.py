"""What becomes of rows: admission, eviction, and the arrays from which a table continues as it would have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.rules import Adagrad, Adam, Sgd
from mpidl.tables.distinct import owner
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import ROWS, Table, left

SPEC = TableSpec("users", 2)
BY_ROW = ("ids", "rows", "state", "uses")
ADAM = Adam(0.5)
LIVES = [
    {},
    {"max_rows": 9},
    {"max_age": 3},
    {"max_rows": 12, "max_age": 4, "admission": 2},
    {"max_rows": 12, "admission": 0.6},
]
PUSHES = st.lists(st.lists(st.integers(-10, 20), unique=True, max_size=15), min_size=1, max_size=12)


def table(rule=ADAM, **options):
    return Table(SPEC, rule, seed=3, dtype=np.float64, **options)


def push(to, ids, step, value=None):
    """Update with gradients that depend on the ids and the step."""
    ids = np.array(ids, np.int64)
    given = np.stack([np.sin(ids + step), np.cos(ids * step)], 1) if value is None else np.full((ids.size, 2), value)
    to.update(ids, given, step)


def values(of, ids):
    found = np.empty((len(ids), 2))
    of.read(np.array(ids, np.int64), found)
    return found


def merged(parts):
    """Return the arrays of a table from those of a full copy and of what was used later, in order."""
    places = left([part["ids"] for part in parts], int(parts[-1]["counts"][ROWS]))
    pairs = list(zip(parts, places, strict=True))
    return parts[-1] | {name: np.concatenate([part[name][place] for part, place in pairs]) for name in BY_ROW}


def same(one, other):
    left, right = one.arrays(), other.arrays()
    assert list(left) == list(right)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert len(one) == len(other)
    assert [getattr(one, name) for name in ("step", "new", "admitted", "evicted")] == [
        getattr(other, name) for name in ("step", "new", "admitted", "evicted")
    ]


@given(pushes=PUSHES, options=st.sampled_from(LIVES), cut=st.integers(0, 11))
def test_a_table_continues_from_its_arrays_and_from_a_copy(pushes, options, cut):
    whole, restored = table(**options), table(**options)
    for step, ids in enumerate(pushes[:cut], 1):
        push(whole, ids, step)
    restored.restore(whole.arrays())
    copied, loaded = whole.copy(), table(**options)
    push(loaded, range(30), 1)
    loaded.load(whole)
    before = whole.arrays()
    for step, ids in enumerate(pushes[cut:], cut + 1):
        for each in (restored, copied, loaded):
            push(each, ids, step)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(array, before[name])
    for step, ids in enumerate(pushes[cut:], cut + 1):
        push(whole, ids, step)
    for each in (restored, copied, loaded):
        same(whole, each)


@given(pushes=PUSHES, options=st.sampled_from(LIVES), cuts=st.sets(st.integers(0, 12), min_size=1))
def test_a_full_copy_and_deltas_are_the_table(pushes, options, cuts):
    whole, parts, at = table(**options), [], 0
    for step, ids in enumerate(pushes, 1):
        if step - 1 in cuts:
            parts.append(whole.arrays(since=at))
            at = step - 1
        push(whole, ids, step)
    parts.append(whole.arrays(since=at))
    assert all((part["uses"][:, 0] > 0).all() for part in parts)
    restored = table(**options)
    restored.restore(merged(parts))
    same(whole, restored)


def test_a_delta_has_the_rows_that_were_used_alone():
    rows = table()
    push(rows, range(100), 1)
    push(rows, [5, 200], 2)
    assert rows.arrays(since=1)["ids"].tolist() == [5, 200]
    assert rows.arrays(since=2)["ids"].size == 0
    assert rows.arrays(since=1)["uses"].tolist() == [[2, 2], [2, 1]]


@pytest.mark.parametrize("servers", [(3, 1), (1, 3), (3, 2)])
def test_rows_move_to_another_number_of_servers(servers):
    def parted(ids, count):
        return [[id for id in ids if owner(np.array([id]), count)[0] == server] for server in range(count)]

    before = [table(max_rows=40) for _ in range(servers[0])]
    random = np.random.default_rng(0)
    pushes = [random.choice(30, 10, replace=False).tolist() for _ in range(8)]
    for step, ids in enumerate(pushes[:5], 1):
        for each, own in zip(before, parted(ids, servers[0]), strict=True):
            push(each, own, step)
    after = [table(max_rows=40) for _ in range(servers[1])]
    for server, each in enumerate(after):
        for arrays in (old.arrays() for old in before):
            own = owner(arrays["ids"], servers[1]) == server
            each.restore({name: arrays[name][own] for name in BY_ROW})
    for step, ids in enumerate(pushes[5:], 6):
        for tables in (before, after):
            for each, own in zip(tables, parted(ids, len(tables)), strict=True):
                push(each, own, step)
    for own, old in zip(parted(range(30), servers[1]), [after] * servers[1], strict=True):
        expected = [values(before[owner(np.array([id]), servers[0])[0]], [id])[0] for id in own]
        found = [values(old[owner(np.array([id]), servers[1])[0]], [id])[0] for id in own]
        np.testing.assert_array_equal(found, expected)
    assert all((np.diff(each.arrays()["uses"][:, 0]) >= 0).all() for each in after)


@pytest.mark.parametrize("rule", [Adagrad(0.5), Adam(0.5)])
@pytest.mark.parametrize("options", [{"max_rows": 3}, {"max_age": 1}])
def test_nothing_is_left_of_an_evicted_row(rule, options):
    rows = table(rule, **options)
    first = values(rows, [7])
    push(rows, [7], 1, 5.0)
    assert (values(rows, [7]) != first).all()
    for step in range(2, 6):
        push(rows, [step * 10], step)
    np.testing.assert_array_equal(values(rows, [7]), first)
    push(rows, [7], 6, 0.25)
    never = table(rule)
    push(never, [7], 6, 0.25)
    own = rows.arrays()["ids"] == 7
    for name in ("rows", "state"):
        np.testing.assert_array_equal(rows.arrays()[name][own], never.arrays()[name])
    assert rows.arrays()["uses"][own].tolist() == [[6, 1]]


def test_rows_that_begin_with_given_values():
    rows, ids = table(), np.arange(5)
    push(rows, [3], 1)
    before = values(rows, [3])
    rows.begin(ids, np.full((5, 2), 7.0))
    np.testing.assert_array_equal(values(rows, [0, 1, 2, 4]), 7)
    np.testing.assert_array_equal(values(rows, [3]), before)
    assert rows.arrays()["uses"].tolist() == [[0, 0]] * 4 + [[1, 1]]
    assert (rows.arrays()["ids"][:4].tolist(), rows.new) == ([0, 1, 2, 4], 1)
    restored = table(max_rows=3)
    restored.restore(rows.arrays())
    push(restored, [1, 9], 2)
    assert restored.arrays()["ids"].tolist() == [3, 1, 9]
    push(rows, [4, 2, 4 + 8], 2)
    assert rows.arrays()["uses"].tolist() == [[0, 0]] * 2 + [[1, 1], [2, 1], [2, 1], [2, 1]]
    assert rows.arrays(since=0)["ids"].tolist() == [3, 4, 2, 12]


def test_touches_admit():
    rows = table(Sgd(1.0), admission=3)
    first = values(rows, [7, -4])
    for step in (1, 2):
        push(rows, [7], step, 1.0)
        np.testing.assert_array_equal(values(rows, [7, -4]), first)
    assert (len(rows), rows.new, rows.admitted) == (0, 2, 0)
    push(rows, [-4, 7], 3, 1.0)
    np.testing.assert_array_equal(values(rows, [7, -4]), first - [[1, 1], [0, 0]])
    assert (len(rows), rows.new, rows.admitted) == (1, 4, 1)
    assert rows.arrays()["uses"].tolist() == [[3, 1]]


def test_rare_ids_do_not_fill_the_filter():
    rows = table(Sgd(1.0), admission=3)
    gradients = np.zeros((50_000, 2))
    for step in range(100):
        rows.update(np.arange(gradients.shape[0]) + step * gradients.shape[0], gradients, step + 1)
    assert rows.new == 5_000_000
    assert rows.admitted < 0.25 * rows.new


def test_a_probability_admits_that_share_and_the_same_ids_again():
    ids = np.arange(20_000)
    shares = []
    for _ in range(2):
        rows = table(Sgd(1.0), admission=0.3)
        rows.update(ids, np.ones((ids.size, 2)), 1)
        shares.append(rows.arrays()["ids"])
    np.testing.assert_array_equal(*shares)
    assert len(rows) / ids.size == pytest.approx(0.3, abs=0.02)
    rows.update(ids, np.ones((ids.size, 2)), 2)
    assert len(rows) / ids.size == pytest.approx(0.51, abs=0.02)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, 256, float("nan")])
def test_wrong_admissions(wrong):
    with pytest.raises(UsageError, match="expected a probability below 1, or 1 to 255 touches"):
        table(admission=wrong)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(bad):
    rows = table(max_rows=2)
    push(rows, [1, 2], 1)
    assert rows.finite()
    push(rows, [1], 2, bad)
    assert not rows.finite()
    assert not rows.finite(since=1)
    assert rows.finite(since=2)
    push(rows, [3, 4], 3)
    assert rows.finite()


def test_nothing_is_left_of_what_a_table_had_before_it_loads():
    loaded, fresh, other = table(), table(), table()
    push(loaded, range(3000), 1)
    push(other, [5], 1)
    loaded.load(other)
    fresh.load(other)
    for each in (loaded, fresh):
        push(each, range(1000, 4000), 2)
    same(loaded, fresh)
