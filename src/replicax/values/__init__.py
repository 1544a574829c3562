"""Distributed values: one value per replica, how they are built, selected and merged."""
