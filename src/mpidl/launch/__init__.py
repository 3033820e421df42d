"""How processes are started: the environment of this process, and mpiexec."""
