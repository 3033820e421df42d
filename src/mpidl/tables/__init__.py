"""Tables of rows by id, which live on servers: an index, rows with their rule's state, admission and eviction."""
