"""The launcher: plans the workers of this machine, starts, watches, stops and restarts them."""
