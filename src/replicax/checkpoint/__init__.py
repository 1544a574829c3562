"""Saves the state of a program, and restores it into any number of replicas."""
