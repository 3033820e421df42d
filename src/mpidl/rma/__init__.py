"""One-sided MPI: windows with named regions, mailboxes, atomic counters and the back-off of those who wait."""
