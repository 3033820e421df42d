"""Mirrors: interim checkpoints in the memory of nodes, used when a job restarts."""
