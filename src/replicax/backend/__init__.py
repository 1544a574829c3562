"""The only layer that names devices: meshes, placement, collectives, the run-ahead bound."""
