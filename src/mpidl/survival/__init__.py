"""Jobs that outlive their processes: when one dies, others of its node play its ranks."""
