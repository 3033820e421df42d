"""Mirrors: interim checkpoints in the memory of nodes, from which a job that starts again goes on."""
