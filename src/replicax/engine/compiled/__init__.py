"""The compiled executor: one trace for all replicas."""
