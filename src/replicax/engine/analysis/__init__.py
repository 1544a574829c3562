"""Passes over traced programs: what may drift, hang or happen twice."""
