"""What a training loop spends its time on, while it runs: ``rx.watch(strategy)``."""
