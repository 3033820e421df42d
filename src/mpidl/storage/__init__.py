"""Files that a run writes and another reads: checkpoints and recorded interleavings."""
