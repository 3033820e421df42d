"""One range of the parameters: its state, and all that changes it."""
