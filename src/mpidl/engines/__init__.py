"""The engines, which carry out the requests of algorithms: on MPI ranks, or in one process in virtual time."""
