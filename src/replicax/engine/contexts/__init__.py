"""Where code is: the stack of strategies, and the context of a replica."""
