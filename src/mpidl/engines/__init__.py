"""What carries out an algorithm's requests: over MPI windows, or in one process in virtual time."""
