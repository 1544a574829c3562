"""Variables: storage, reads and writes by context, creation, capture by a trace."""
