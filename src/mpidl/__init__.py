"""DistBelief on MPI."""
