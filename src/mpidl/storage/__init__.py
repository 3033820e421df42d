"""Files that a run reads again: checkpoints and recorded interleavings."""
