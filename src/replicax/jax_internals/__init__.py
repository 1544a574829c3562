"""Every private name of JAX that Replicax uses, one file a subject."""
