"""The configuration of a run."""

from mpidl.config.configuration import SECTIONS, Config, chosen_rule, from_dict, load

__all__ = ["SECTIONS", "Config", "chosen_rule", "from_dict", "load"]
