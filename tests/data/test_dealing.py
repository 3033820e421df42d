"""Samples dealt out unevenly: each has one owner, and no owner goes without."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.data.dealing import Deal
from mpidl.errors import UsageError


@settings(max_examples=30)
@given(
    text=st.sampled_from(["label:1", "label:2", "label:5", "dirichlet:0.001", "dirichlet:0.3", "dirichlet:100"]),
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
