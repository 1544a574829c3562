"""Compiled functions: how a call finds its program, and launches it."""
