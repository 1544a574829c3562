"""The transports that the coordinator contract runs over: a row here is tested without a test."""

RAY = "ray"

TRANSPORTS = ["embedded"]
"""What ``ParameterServerStrategy(transport=...)`` is given."""
