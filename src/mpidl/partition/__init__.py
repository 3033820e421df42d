"""Models cut over the ranks of a replica: what each computes and holds, and what moves between them."""
