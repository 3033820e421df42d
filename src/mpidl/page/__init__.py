"""The page of runs: one HTML file with their curves, ranks, events and configurations, which needs no network."""

from mpidl.page.writing import write

__all__ = ["write"]
