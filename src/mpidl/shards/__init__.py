"""Everything that is done to one range of the parameters."""
