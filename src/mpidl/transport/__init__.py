"""What the ranks of a run say to each other: the interface of a transport, and its words and numbers. No MPI."""
