"""The optional features of a job, a line for each; `others` are ranks that push and fetch without being workers."""

from mpidl.relays import feature as others

__all__ = ["others"]
