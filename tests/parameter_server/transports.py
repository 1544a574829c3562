"""The transports that the coordinator contract runs over: a row here is tested without a test."""

TRANSPORTS = {"embedded": "embedded"}
"""What ``ParameterServerStrategy(transport=...)`` is given, by name."""
