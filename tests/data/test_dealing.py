"""Samples dealt out unevenly: each has one owner, and no owner goes without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.data.labels import Deal
from mpidl.errors import UsageError


@given(
    text=st.sampled_from(["label:1", "label:2", "label:5", "dirichlet:0.001", "dirichlet:0.3", "dirichlet:1e300"]),
    labels=st.lists(st.integers(-3, 9), min_size=40, max_size=90), replicas=st.integers(1, 8), seed=st.integers(0, 9),
)  # fmt: skip
def test_every_sample_has_one_owner_and_no_owner_is_without(text, labels, replicas, seed):
    labels = np.array(labels)
    shares = Deal.parse(text).shares(labels, replicas, seed)
    assert np.sort(np.concatenate(shares)).tolist() == list(range(len(labels)))
    assert len(shares) == replicas
    assert min(map(len, shares)) >= 1
    again = Deal.parse(text).shares(labels, replicas, seed)
    assert all(np.array_equal(*each) for each in zip(shares, again, strict=True))


def test_pieces_of_single_labels_give_each_replica_two_of_them():
    labels = np.arange(1000) % 10
    shares = Deal.parse("label:2").shares(labels, 10, seed=1)
    assert [len(share) for share in shares] == [100] * 10
    assert {len(np.unique(labels[share])) for share in shares} <= {1, 2}
    others = Deal.parse("label:2").shares(labels, 10, seed=2)
    assert any(not np.array_equal(*each) for each in zip(shares, others, strict=True))


def test_a_small_concentration_is_uneven_and_a_large_one_is_not():
    labels = np.arange(4000) % 10
    most = {}
    for text in ("dirichlet:0.05", "dirichlet:1000"):
        shares = Deal.parse(text).shares(labels, 4, seed=0)
        most[text] = np.mean([np.bincount(labels[share]).max() / len(share) for share in shares])
    assert most["dirichlet:0.05"] > 0.3
    assert most["dirichlet:1000"] < 0.12


@pytest.mark.parametrize("concentration", [0.4, 0.03, 0.001])
def test_shares_are_dirichlets_where_many_owners_would_have_no_sample(concentration):
    owners, classes, each, seeds = 100, 10, 1000, 6
    labels, largest = np.repeat(np.arange(classes), each), []
    for seed in range(seeds):
        of_owners = [
            np.bincount(labels[own], minlength=classes) for own in shares_of(labels, owners, concentration, seed)
        ]
        largest += (np.max(of_owners, axis=0) / each).tolist()
    drawn = np.random.default_rng(1).dirichlet(np.full(owners, concentration), 4000).max(axis=1)
    # Sampling errors, and one sample for each owner that would have none.
    tolerance = 4 * drawn.std() / len(largest) ** 0.5 + owners / labels.size
    assert np.mean(largest) == pytest.approx(drawn.mean(), abs=tolerance)


def shares_of(labels, owners, concentration, seed):
    return Deal.parse(f"dirichlet:{concentration}").shares(labels, owners, seed)


def test_owners_that_would_have_no_sample_get_one():
    shares = Deal.parse("dirichlet:1e-9").shares(np.zeros(500, int), 40, seed=0)
    assert sorted(map(len, shares)) == [1] * 39 + [461]


@pytest.mark.parametrize(("samples", "sizes"), [(100, [33, 34, 33]), (101, [34, 33, 34]), (2000, [667, 666, 667])])
@pytest.mark.parametrize("concentration", ["1e9", "1e308"])
def test_sizes_are_the_nearest_to_the_shares(samples, sizes, concentration):
    shares = Deal.parse(f"dirichlet:{concentration}").shares(np.zeros(samples, int), 3, seed=0)
    assert [len(share) for share in shares] == sizes


@pytest.mark.parametrize("text", ["label:1", "dirichlet:1e9"])
def test_samples_of_a_label_are_dealt_at_random(text):
    for share in Deal.parse(text).shares(np.zeros(2000, int), 2, seed=0):
        assert 0.4 < np.mean(share < 1000) < 0.6
        assert share.tolist() == sorted(share.tolist())


@pytest.mark.parametrize(
    "text",
    ["label", "label:0", "label:1.5", "dirichlet:0", "dirichlet:-1", "dirichlet:inf", "dirichlet:nan", "iid:2", ""],
)
def test_what_is_no_deal(text):
    with pytest.raises(UsageError, match="expected 'label:' and a number of labels, or 'dirichlet:' and one above 0"):
        Deal.parse(text)


def test_too_few_samples():
    with pytest.raises(UsageError, match=r"^7 training samples, expected at least 8 for 4 replicas$"):
        Deal.parse("label:2").shares(np.zeros(7, int), 4, 0)
