"""Coordinator, server and worker as processes."""
