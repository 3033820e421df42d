"""A run's parts and its shards' first values, from a configuration."""
