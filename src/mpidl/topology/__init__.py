"""The roles of ranks, and their placement on hosts."""
