"""Models cut over the ranks of a replica: who computes and holds what, and what moves between them."""
