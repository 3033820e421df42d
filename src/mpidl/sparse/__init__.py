"""Models with tables in a job: the exchange of their rows between workers and servers."""
