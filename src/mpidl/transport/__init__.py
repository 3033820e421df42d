"""The messages between the ranks of a run, their routes and the sizes of memory; without MPI."""
