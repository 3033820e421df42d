"""How a worker exchanges parameters through servers."""
