"""The shell's side of a start: the environment of this process, and mpiexec."""
