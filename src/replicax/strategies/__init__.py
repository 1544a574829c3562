"""The verbs of distribution, and what each strategy does differently."""
