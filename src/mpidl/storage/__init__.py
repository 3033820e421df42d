"""Checkpoints: written by one run and read by another."""
