"""The ``replicax`` command: ``main`` is the group, every other file is one subcommand."""
