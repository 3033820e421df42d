"""One-sided MPI: windows with named regions, mailboxes, atomic counters, and waiting."""
