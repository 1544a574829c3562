"""The pictures of the documentation, drawn by code: ``python -m website.pictures`` writes them."""
