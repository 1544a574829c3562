"""Builds the documentation site from docs and from the docstrings of src.

``make docs`` runs Sphinx with `conf`; the other modules make what it needs. The site is not part of
the package, and the package knows nothing of it.
"""
