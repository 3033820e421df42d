"""The interface of a transport: the verbs by which roles and engines reach other ranks, in a file for each role.

A transport is made for a set of ranks and freed as a whole. Each role takes its link from it and keeps its own state
elsewhere, so that it can be bound anew to another transport. `mpidl.rma.transport` is the one over MPI windows.
"""
