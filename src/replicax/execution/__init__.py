"""The two executors: eager replica threads, and one SPMD program for all replicas."""
