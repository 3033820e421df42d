"""The commands that simulate a configuration, and plan its memory, its topology and numbers of nodes."""

from __future__ import annotations

import argparse

from mpidl.cli.commands import check_number, configuration, show, show_summary
from mpidl.errors import UsageError
from mpidl.launch import environment
from mpidl.launch.output import say
from mpidl.launch.signals import STOPPED

#: Keys that `mpidl plan` proposes unless they are given.
TOPOLOGY = ("topology.servers", "topology.partitions", "topology.stages")


def run_simulate(arguments: argparse.Namespace) -> int:
    environment.prepare_libraries()
    from mpidl.runs.simulate import simulate

    check_number("--replicas", arguments.replicas)
    summary = simulate(configuration(arguments), arguments.replicas)
    return show_summary(summary, arguments.json, STOPPED if summary.get("interrupted") else 0)


def run_plan(arguments: argparse.Namespace) -> int:
    environment.prepare_libraries()
    if arguments.ranks is not None:
        check_number("--ranks", arguments.ranks)
    if arguments.nodes is not None:
        return _book(arguments)
    if arguments.ranks_per_node is not None:
        raise UsageError("--ranks-per-node: expected --nodes too")
    if arguments.apply and arguments.config.is_dir():
        raise UsageError(f"--apply: {arguments.config} is a directory, expected a configuration's file")
    config = configuration(arguments)
    from mpidl.runs import plan, proposal

    given = [key for key in TOPOLOGY if any(each.strip().startswith(f"{key}=") for each in arguments.overrides)]
    if arguments.apply and (arguments.ranks is None or given):
        expected = f"{given[0]} is given, leave it out" if given else "expected --ranks too"
        raise UsageError(f"--apply: {expected}")
    if arguments.ranks is None or given:
        show(plan.plan(config, arguments.ranks), arguments.json, plan.as_text)
        return 0
    proposed = proposal.propose(config, arguments.ranks)
    show(proposed, arguments.json, lambda found: f"{plan.as_text(found)}\n{proposal.as_text(found)}")
    if arguments.apply:
        say(proposal.apply(proposed, arguments.config))
    return 0


def _book(arguments: argparse.Namespace) -> int:
    """Compare numbers of nodes."""
    for option in ("ranks", "apply"):
        if getattr(arguments, option):
            raise UsageError(f"--{option}: can't be combined with --nodes")
    for number in arguments.nodes:
        check_number("--nodes", number)
    given = [each.strip().partition("=")[0].strip() for each in arguments.overrides]
    fixed = [key for key in TOPOLOGY[1:] if key in given]
    if fixed:
        raise UsageError(f"--nodes: finds the fastest {fixed[0]} for each, leave it out")
    config = configuration(arguments)
    from mpidl.runs import proposal

    ranks_per_node = arguments.ranks_per_node or proposal.cores(config)
    check_number("--ranks-per-node", ranks_per_node)
    booked = proposal.book(config, arguments.nodes, ranks_per_node, arguments.overrides, str(arguments.config))
    show(booked, arguments.json, proposal.booking_as_text)
    return 0
