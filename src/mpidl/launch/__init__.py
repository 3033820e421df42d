"""Start of processes: the environment of this one, mpiexec, and schedulers."""
