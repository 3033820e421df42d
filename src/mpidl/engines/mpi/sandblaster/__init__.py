"""Sandblaster on MPI ranks."""
