"""The screen of ``mpidl top``: what the ranks of a run do, from its files alone."""
