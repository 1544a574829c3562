"""Runs steps: on replicas, eagerly or compiled into one program."""
