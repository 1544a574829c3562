"""Names, options, errors and structure handling that know nothing of JAX state."""
