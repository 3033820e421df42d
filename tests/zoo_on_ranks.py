"""Train all modules of the zoo on the ranks of an MPI job, into a directory, and print how each differs."""

import sys

from mpi4py import MPI

from zoo import ZOO, differences

for name in (name for name, case in ZOO.items() if not case.local):
    found = MPI.COMM_WORLD.gather(differences(name, sys.argv[1], servers=MPI.COMM_WORLD.size - 2))
    if found is not None:
        print(f"{name}: {[line for lines in found for line in lines]}", flush=True)
