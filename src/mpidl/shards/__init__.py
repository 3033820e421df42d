"""One range of the parameters: its state, and everything that changes it."""
