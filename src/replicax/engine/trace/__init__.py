"""Traced programs: the state they touch, and one program for all replicas."""
