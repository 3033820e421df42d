"""Relays: one rank of a node pushes the sum of what its workers push, and fetches for all of them."""
