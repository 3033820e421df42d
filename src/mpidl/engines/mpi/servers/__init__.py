"""How a worker exchanges parameters through servers: the common part, and one file for each order of its steps."""
