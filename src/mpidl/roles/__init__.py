"""Coordinator, server, relay and worker as processes."""
