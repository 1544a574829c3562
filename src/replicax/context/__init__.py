"""Who am I: the per-thread stack of strategies, replica and cross-replica contexts."""
