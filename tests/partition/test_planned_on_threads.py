"""Planned networks, on threads, train as uncut ones do."""

from dataclasses import replace

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from job_networks import NETWORKS
from test_planned_networks import CASES, IMAGES, chosen, possible, stacks

import threads
from hand_plans import batch_for, check_training, trained
from mpidl.errors import UsageError
from mpidl.nn import Network
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import make_plan


def run(layers, cut_layers, shape, partitions, stages, samples):
    plan = make_plan(cut_layers, shape, partitions, batch=max(samples), stages=stages)
    net = Network(layers, shape, dtype="float64", seed=3)
    batches = [batch_for(net, n, seed) for seed, n in enumerate(samples)]

    def rank(group):
        own = Network(cut_layers, shape, dtype="float64", seed=3)
        return trained(CutNetwork(own, plan, group.rank), group, batches, rate=0.01)

    check_training(net, plan, threads.run(partitions, rank), batches, rate=0.01)


@pytest.mark.parametrize(
    ("name", "cut", "partitions", "stages"),
    [*CASES, *(("digits", "", partitions, 1) for partitions in (1, 4)), *((name, "samples", 3, 1) for name in IMAGES)],
)
def test_networks_of_jobs(name, cut, partitions, stages):
    layers, shape = NETWORKS[name]
    layers = [replace(chosen(layer, ""), cut="") for layer in layers]
    cut_layers = [chosen(layer, cut) if cut != "samples" else replace(layer, cut=cut) for layer in layers]
    run(layers, cut_layers, shape, partitions, stages, [5, 2, 1, 5])


@settings(max_examples=15)
@given(stacks(), st.sampled_from([2, 3, 4, 6]), st.integers(1, 7))
def test_any_network_cut_in_any_way(layers, partitions, samples):
    shape = (13, 11, 4)
    try:
        Network(layers, shape, dtype="float64")
    except UsageError:
        reject()
    cut = [each if possible(layers, i, shape, partitions) else replace(each, cut="") for i, each in enumerate(layers)]
    run(layers, cut, shape, partitions, 1, [samples, 3, samples])
