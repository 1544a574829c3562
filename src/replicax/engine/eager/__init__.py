"""The eager executor: one Python function per replica, which meet."""
