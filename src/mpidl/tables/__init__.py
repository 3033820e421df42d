"""Tables of rows by id, which live on servers: an index, the rows with their rule's state, and what becomes of them."""
