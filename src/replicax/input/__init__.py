"""Turns global batches into per-replica values."""
