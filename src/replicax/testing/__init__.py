"""For users' own tests: is the result independent of the replicas, are copies equal, NaN."""
