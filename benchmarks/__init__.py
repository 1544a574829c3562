"""The performance suite: the same work in Replicax, in hand-written JAX and in other libraries.

`cases` says what is measured, `peers` has one file for each program that does it, `driver`
starts them as processes and measures them in alternating rounds, `startup` measures how they
start, `targets` says what must hold, `report` and `plots` show it. ``python -m benchmarks``
is the command.
"""
