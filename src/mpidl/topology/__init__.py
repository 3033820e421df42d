"""Which rank plays which role, where."""
