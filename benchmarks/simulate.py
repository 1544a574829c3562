"""How far is what `simulate` predicts for this machine from what happens on it?

The steps W1, W2 and W3, with their global batch over 1, 2, 4 and 8 virtual devices and over two
processes: predicted from a step on two devices and from what `calibrate` measures, and measured, by
the processes of the benchmark suite. Time is the time of the cores, summed over them and over all
processes, which a busy machine changes less than time on the clock. Memory is compared with XLA's
plan for one device. One JSON object is printed for each layout, and one with all errors at the end.

Usage: python -m benchmarks.simulate [--rounds 3] [--machine FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import replicax as rx
from benchmarks import models, problems
from benchmarks.alternating import environment
from benchmarks.cases import OURS, Case
from benchmarks.processes import PeerProcesses, ending
from replicax.costs.machines import ClusterTopology, Link, Machine

REPLICAS = (1, 2, 4, 8)
AT_HAND = 2
DIFFERENT = 1.2
"""From which ratio on two layouts are said to differ."""

WORKLOADS = {"W1": "dispatch", "W2": "adam", "W3": "adam"}
RUNS = {"W1": 400, "W2": 20, "W3": 2}
SENT = {"all_reduce 1 MB": 2**20, "all_reduce 16 MB": 2**24}

Step = tuple[Callable[..., Any], tuple[Any, ...], rx.Strategy | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How the replicas of a workload are spread over this machine.

    Attributes:
        workload: W1, W2 or W3.
        replicas: How many.
        processes: Over how many processes.
    """

    workload: str
    replicas: int
    processes: int = 1

    @property
    def case(self) -> Case:
        """What the processes of the suite measure."""
        workload = "W7" if self.workload == "W2" and self.processes > 1 else self.workload
        variant = WORKLOADS[self.workload]
        return Case(workload, self.replicas, (variant,), (OURS,), self.processes)

    def topology(self, machine: Machine) -> ClusterTopology:
        """The same for `simulate`."""
        return ClusterTopology(1, machine, self.replicas, workers_per_host=self.processes)


LAYOUTS = [
    layout
    for workload in WORKLOADS
    for layout in (*(Layout(workload, n) for n in REPLICAS), Layout(workload, 2, 2))
]


def step_on(workload: str, replicas: int) -> Step:
    """The step of a workload on virtual devices of this process."""
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    if workload == "W1":
        return _empty_step(strategy, replicas)
    problem = problems.problem_of(workload, WORKLOADS[workload])
    loss_of = models.loss_of(problem)
    with strategy.scope():
        params = rx.variables_from(problem.params)
        optimizer = rx.Optimizer(models.optimizer_of(problem))
    optimizer.build(params)

    @rx.function
    def step(*batch: Any) -> Any:
        loss, gradients = rx.value_and_grad(lambda: loss_of(params, *batch), params)
        optimizer.apply_gradients([(gradients, params)])
        return loss

    return step, strategy.distribute_batch(problem.batch), strategy


def _empty_step(strategy: rx.Strategy, replicas: int) -> Step:
    variable, factors = problems.empty_step(replicas)
    with strategy.scope():
        w = rx.Variable(variable)

    def total_of(x: Any) -> Any:
        return rx.get_replica_context().all_reduce("SUM", jnp.sum(w * x))

    @rx.function
    def step(x: Any) -> Any:
        total = strategy.run(total_of, args=(x,))
        w.assign(w - problems.EMPTY_RATE * total)
        return total

    return step, (strategy.distribute_batch(factors),), None


def planned_bytes(workload: str, replicas: int) -> int:
    """What XLA has planned for one device."""
    step, args, strategy = step_on(workload, replicas)
    assert isinstance(step, rx.Function)
    lowered = step.lower(*args) if strategy is None else step.lower_run(strategy, *args)
    memory = lowered.compile().memory_analysis()
    kept = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + kept + memory.temp_size_in_bytes


def measured_seconds(case: Case, variant: str, runs: int, rounds: int) -> float:
    """The time of the cores for one step, of all processes together: the least of the rounds."""
    with ending([PeerProcesses(OURS, case, deadline=400.0)]) as (peer,):
        peer.start_build(variant)
        peer.value()
        return min(peer.measure(runs)["cpu_us"] for _ in range(rounds)) / 1e6


def link_of_processes(machine: Machine, rounds: int) -> Link:
    """How fast two processes of this machine reach each other: all-reduces of three sizes.

    The smallest is that of W4 with one variable, which does little else.
    """

    def seconds(workload: str, variant: str, runs: int) -> float:
        case = Case(workload, 2, (variant,), (OURS,), 2)
        return measured_seconds(case, variant, runs, rounds)

    times = {size: seconds("W8", variant, 20) for variant, size in SENT.items()}
    (small, small_time), (large, large_time) = sorted(times.items())
    bandwidth = 2 * (large - small) / (large_time - small_time)  # both devices send all of it
    latency = seconds("W4", "1 variables", 200) - 2 * machine.launch_seconds
    return Link(bandwidth, max(latency, 1e-6) / 2)


def calibrated(path: pathlib.Path | None, rounds: int) -> Machine:
    """This machine, from a file if there is one."""
    if path is not None and path.exists():
        return Machine.load(path)
    machine = rx.calibrate(clock="cpu", seconds=0.05)
    machine = dataclasses.replace(machine, between_workers=link_of_processes(machine, rounds))
    if path is not None:
        machine.save(path)
    return machine


def ranked_right(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """How many pairs of layouts of one workload differ, and of how many the order was predicted."""
    pairs = [
        (one, other)
        for one, other in itertools.combinations(rows, 2)
        if one["workload"] == other["workload"]
        and max(one["seconds"], other["seconds"])
        > DIFFERENT * min(one["seconds"], other["seconds"])
    ]
    right = [
        (one["seconds"] < other["seconds"]) == (one["predicted"] < other["predicted"])
        for one, other in pairs
    ]
    return len(pairs), sum(right)


def main() -> None:
    """Prints one line for each layout, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--machine", type=pathlib.Path)
    options = parser.parse_args()
    rx.set_virtual_devices(max(REPLICAS))
    machine = calibrated(options.machine, options.rounds)
    print(machine.to_json(), flush=True)
    rows = []
    for layout in LAYOUTS:
        step, args, strategy = step_on(layout.workload, AT_HAND)
        kept = "per_replica" if layout.workload == "W1" else "global"
        found = rx.simulate(
            step,
            *args,
            topology=layout.topology(machine),
            strategy=strategy,
            hosts=(),
            batch=kept,
        ).chosen
        seconds = measured_seconds(
            layout.case, WORKLOADS[layout.workload], RUNS[layout.workload], options.rounds
        )
        planned = planned_bytes(layout.workload, layout.replicas)
        row = {
            **dataclasses.asdict(layout),
            "seconds": seconds,
            "predicted": found.time.seconds,
            "time_error": round(found.time.seconds / seconds - 1, 3),
            "planned_bytes": planned,
            "predicted_bytes": found.memory.total,
            "memory_error": round(found.memory.total / planned - 1, 4),
            "limit": found.limit,
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    num_pairs, num_right = ranked_right(rows)
    summary = {
        "median_time_error": statistics.median(abs(row["time_error"]) for row in rows),
        "largest_time_error": max(abs(row["time_error"]) for row in rows),
        "pairs_that_differ": num_pairs,
        "ranked_right": num_right,
        "median_memory_error": statistics.median(abs(row["memory_error"]) for row in rows),
        "largest_memory_error": max(abs(row["memory_error"]) for row in rows),
    }
    print(json.dumps({**summary, "environment": environment()}))


if __name__ == "__main__":
    main()
