"""Ray: a cluster of this machine of its own, and the connection to one that exists."""
