"""The keywords of `mpidl.train` that stand for keys of a configuration."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from mpidl.algorithms import Algorithm
from mpidl.config import SECTIONS, Config, from_dict
from mpidl.config.configuration import marked, read, set_keys
from mpidl.data import Dataset, Source
from mpidl.errors import UsageError, kind_of, nearest, quoted
from mpidl.rules import RULES, Rule
from mpidl.schema import check_table

Section = Mapping[str, Any]


#: Sections whose keys are keywords, each by itself. The others are keywords as a whole, but for ``[virtual]``.
ONE_BY_ONE = ("run", "data", "model", "topology", "checkpoint")


def _places() -> Iterator[tuple[str, str]]:
    """Yield each keyword with the ``"section"`` or ``"section.key"`` that it stands for."""
    for section, cls in SECTIONS.items():
        if section in ONE_BY_ONE:
            names = {field.name: field.metadata.get("keyword", field.name) for field in fields(cls)}
            yield from ((keyword, f"{section}.{key}") for key, keyword in names.items() if keyword is not None)
        elif section != "virtual":
            yield section, section


#: The section or the key that each keyword stands for; None, as its value, leaves that as it is.
KEYWORDS = dict(_places())


def _annotation(place: str) -> Any:
    section, _, key = place.partition(".")
    return get_type_hints(SECTIONS[section])[key] if key else SECTIONS[section]


def signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function with `KEYWORDS` one by one, as `help` and prompts show and complete it."""
    written = inspect.signature(function)
    own = [each for each in written.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    ours = [
        inspect.Parameter(name, kind, default=None, annotation=_annotation(place) | None)
        for name, place in KEYWORDS.items()
    ]
    return written.replace(parameters=[*own, *ours])


#: What other packages call the rate of a rule.
RATE = ("lr", "learning_rate")
#: What to give instead of arguments of other packages.
INSTEAD = {
    **dict.fromkeys(RATE, "the rate of a rule, such as rule=mpidl.Adagrad(0.01), or lr beside rule='adagrad'"),
    **dict.fromkeys(("optimizer", "optimiser", "optim", "opt"), "a rule, such as rule=mpidl.Adam(0.001)"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "a schedule, such as rate={'schedule': 'cosine'}"),
    **dict.fromkeys(("n", "ranks", "workers"), "ranks that run a script: mpidl run SCRIPT -n 4, from a shell"),
    "momentum": "a rule, such as rule=mpidl.Momentum(0.01, 0.9)",
    "weight_decay": "l2, or a group, such as groups=[{'match': '*', 'weight_decay': 0.01}]",
}


def check(keywords: Mapping[str, Any], known: Iterable[str], rule: Rule | str | Section | None) -> None:
    """Raise UsageError for a keyword that is not in `KEYWORDS`; the error names what to give instead.

    A rate may be given beside a `rule` without one.
    """
    for keyword in _with_rate(rule, keywords)[1]:
        if keyword not in KEYWORDS:
            instead = f", expected {INSTEAD[keyword]}" if keyword in INSTEAD else nearest(keyword, list(known))
            raise UsageError(f"mpidl.train: unknown keyword {quoted(keyword)}{instead}")
    if isinstance(rate := keywords.get("rate"), int | float):
        raise UsageError(
            f"rate: found {rate}, expected a schedule, such as {{'schedule': 'cosine'}}; rates themselves are those of "
            f"rules, such as rule=mpidl.Adagrad({rate})"
        )
    if isinstance(rate, str) or callable(rate):
        found = quoted(rate) if isinstance(rate, str) else kind_of(rate)
        raise UsageError(
            f"rate: found {found}, expected a mapping, such as {{'schedule': 'cosine'}} or "
            "{'schedule': 'module:function'}"
        )


def _with_rate(rule: Rule | str | Section | None, keywords: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Move the rate given as ``lr`` into a rule that is a name, or a mapping without a rate; return rule and keywords.

    Any other rule and its keywords are returned unchanged.
    """
    rates = [value for keyword in RATE if (value := keywords.get(keyword)) is not None]
    table = {"rule": rule} if isinstance(rule, str) else rule
    if len(rates) != 1 or not isinstance(table, Mapping) or "rate" in table:
        return rule, keywords
    return {**table, "rate": rates[0]}, {key: value for key, value in keywords.items() if key not in RATE}


def check_parts(data: Any, algorithm: Any, rule: Any) -> None:
    """Raise UsageError for data, an algorithm or a rule of the wrong type; the error has the right form."""
    if data is not None and not isinstance(data, Dataset) and (isinstance(data, type) or not hasattr(data, "open")):
        raise UsageError(
            "data: expected a Dataset or a source, such as mpidl.Digits(), mpidl.Arrays((x, y), (test_x, test_y)) or "
            f"mpidl.Indexed(train, test), found {_found(data)}"
        )
    for key, value, cls, example in (
        ("algorithm", algorithm, Algorithm, "mpidl.Downpour()"),
        ("rule", rule, Rule, "mpidl.Adagrad()"),
    ):
        if isinstance(value, type) and issubclass(value, cls):
            raise UsageError(f"{key}: found the class {value.__name__}, expected one of its objects")
        if value is not None and not isinstance(value, cls | str | Mapping):
            expected = _like_torch(value) or f"one such as {example}, or its name"
            raise UsageError(f"{key}: expected {expected}, found {_found(value)}")


def _like_torch(optimiser: Any) -> str | None:
    """Return what stands for an optimiser of PyTorch, or for its class; None for anything else."""
    cls = optimiser if isinstance(optimiser, type) else type(optimiser)
    if not cls.__module__.startswith("torch.optim"):
        return None
    if cls.__name__ == "LBFGS":
        return "algorithm=mpidl.Sandblaster()"
    options = getattr(optimiser, "param_groups", [{}])[0]
    name = cls.__name__.lower()
    if name == "sgd" and options.get("momentum"):
        name = "nesterov" if options.get("nesterov") else "momentum"
    if name not in RULES:
        return f"a rule of mpidl.rules, one of {', '.join(each.__name__ for each in RULES.values())}"
    keys = ("lr", "momentum") if name in ("momentum", "nesterov") else ("lr",)
    given = ", ".join(f"{options[key]:g}" for key in keys if key in options)
    return f"rule=mpidl.rules.{RULES[name].__name__}({given})"


def _found(value: Any) -> str:
    return kind_of(value) if hasattr(value, "__len__") and not isinstance(value, str) else quoted(value)


def resolve(
    config: Config | str | Path | Mapping[str, Section] | None,
    model: Section,
    source: Source | None,
    algorithm: Algorithm | str | Section | None,
    rule: Rule | str | Section | None,
    keywords: Mapping[str, Any],
) -> Config:
    """Return `config` with the given keys of a model, objects and keywords; None leaves a value as it is.

    Raise what `from_dict` raises.
    """
    objects: dict[str, Any] = {"data_source": source}
    by_name, (rule, keywords) = rule, _with_rate(rule, keywords)
    if isinstance(config, Config):
        values: dict[str, Any] = {**config.to_dict(), "data": vars(config.data)}
        objects = {"data_source": source or config.data_source, "algorithm": config.algorithm, "rule": config.rule}
        if algorithm is not None and config.rule == config.algorithm.default_rule:
            objects["rule"] = values["server"] = None
    else:
        values = read(config) if isinstance(config, str | Path) else dict(config or {})
    # Of a mapping without an algorithm, nothing was given for another one.
    before = {} if isinstance(config, Mapping) and "algorithm" not in config else dict(values)
    for name, section, key, given in (("algorithm", "algorithm", "name", algorithm), ("rule", "server", "rule", rule)):
        if isinstance(given, str | Mapping):
            objects[name], values[section] = None, {key: given} if isinstance(given, str) else given
        elif given is not None:
            objects[name], values[section] = given, {}
    values = {section: table for section, table in values.items() if table is not None}
    if model:
        values["model"] = _model(values.get("model", {}), model)
    values = _with_keywords(values, keywords)
    found = from_dict(values, **objects)
    if rule is not by_name and found.algorithm.outer:
        name = found.algorithm.name
        raise UsageError(
            f"lr: ambiguous, {name} has an inner rate and an outer one; for the outer one, give rule={quoted(rule)}"
        )
    return marked(found, before, values)


def _with_keywords(values: Mapping[str, Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a configuration with the sections and keys that keywords stand for."""
    sections: dict[str, Any] = dict(values)
    keys: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for keyword, value in keywords.items():
        section, _, key = KEYWORDS[keyword].partition(".")
        if keyword == "device" and isinstance(value, str):
            key = "kind"
        if value is not None:
            if key:
                keys[section][key] = value
            else:
                sections[section] = value
    return sections | {section: set_keys(sections.get(section, {}), section, given) for section, given in keys.items()}


def _model(table: Any, given: Section) -> dict[str, Any]:
    """Return the section ``[model]`` with the given keys; those that describe another model are left out."""
    check_table("model", table)
    replaced: tuple[str, ...] = ()
    if "factory" in given:
        replaced = ("layer", "factory", *(("loss", "label_smoothing", "dtype") if "layer" in table else ()))
    return {**{key: value for key, value in table.items() if key not in replaced}, **given}
