"""What a user may not have meant by a configuration, in lines."""

from __future__ import annotations

from mpidl.config import Config
from mpidl.data import Split


def notes_on(config: Config, train: Split) -> list[str]:
    """Return what a configuration says that works, but is seldom meant, given the training data."""
    return [*_on_rule(config), *_on_data(config, train)]


def _on_rule(config: Config) -> list[str]:
    algorithm, rule = config.algorithm, config.rule
    default = algorithm.default_rule
    if not algorithm.outer or rule is None or default is None or isinstance(rule, type(default)):
        return []
    return [f"server.rule: {rule.name} is the outer rule of {algorithm.name} now, {default.name} its own"]


def _on_data(config: Config, train: Split) -> list[str]:
    data = config.data
    if data.keep != "files" or data.portion % train.chunk == 0:
        return []
    if not data.by_portions(train):
        return [f"data.shuffle: 'samples', but the files are read in chunks of {train.chunk}: use 'portion'"]
    return [
        f"data.portion: {data.portion}, but the files are read in chunks of {train.chunk} samples, some of them "
        f"for two portions: use a multiple of {train.chunk}"
    ]
