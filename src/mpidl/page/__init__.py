"""The page of runs: one HTML file with their curves, ranks, events and configurations, which asks no host for anything."""

from mpidl.page.writing import write

__all__ = ["write"]
