"""Metrics: figures accumulated by all replicas without communication, combined when read."""
