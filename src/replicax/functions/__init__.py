"""Whole-program compilation, gradients with respect to variables, the host loop."""
