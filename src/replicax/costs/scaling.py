"""What one replica of a step does when there are other numbers of replicas than here.

The program of a replica is the same for any number of them, so a step that was traced for a few
replicas says what it does among thousands. What depends on their number:

- The size of groups that meet. The bytes of an all-reduce and of a reduce-scatter stay; the part of
  an all-gather is the whole divided by the number of replicas.
- Variables and slots in parts: the whole divided by the number of replicas, rounded up.
- The batch of each replica, where the global batch stays.

Another stage of ``Sharding`` than that of the step changes collectives by the following rules. P
are the parameters that gradients are taken of, small ones packed, as Replicax sends them:

- stage 0: an all-reduce of P.
- stage 1: an all-reduce of P, and an all-gather of the new P.
- stage 2: a reduce-scatter of P, and an all-gather of the new P.
- stage 3: an all-gather of P where they are read, and a reduce-scatter of P.

The memory between inputs and outputs is then an estimate: in stages 2 and 3 the reduced gradients
have the size of a part. Of a step that was made under stage 3 it is what it is for the replicas at
hand, whose parts are larger than those of more replicas.

Another number of logical devices divides operations, activations and temporaries. Variables stay
whole on each device if the step does not cut them. The replica's devices are taken to all-reduce
the results of every second product whose size follows the batch, which is what a transformer
needs that is cut by columns and then by rows.

Pure arithmetic over what was traced.
"""

from __future__ import annotations

import dataclasses
import math

from replicax.backend.collectives import PACKED_BELOW
from replicax.costs.collectives import LOGICAL_DEVICES, REPLICAS, Collective
from replicax.costs.machines import ClusterTopology
from replicax.costs.program import IN_PARTS, StepProgram, StepState
from replicax.costs.samples import Sample, SampledStep
from replicax.costs.timing import Work


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What one device holds while a step runs, in bytes.

    Attributes:
        variables: Variables, without those in `slots`.
        slots: What optimizers keep for variables.
        arguments: What is passed to the step: the batch, and what is the same for all replicas.
        outputs: What the step returns.
        temporaries: Activations, gradients and scratch.
        constants: Arrays that the function has captured, and the program.
    """

    variables: float
    slots: float
    arguments: float
    outputs: float
    temporaries: float
    constants: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(getattr(self, field.name) for field in dataclasses.fields(self))


def work_of(step: SampledStep, topology: ClusterTopology, batch: int) -> Work:
    """What one device does.

    Args:
        step: The step.
        topology: The devices.
        batch: The examples of each replica.

    Returns:
        The work.
    """
    sample = step.at(batch)
    operations, pieces = sample.operations, topology.logical_devices
    memory = memory_of(step, topology, batch)
    trained = sum(one.num_bytes for one in _trainable(sample.program))
    written = memory.variables + memory.slots
    return Work(
        products=tuple(
            dataclasses.replace(product, count=product.count / pieces)
            for product in operations.products
        ),
        elements=operations.elements / pieces,
        element_bytes=2 * sample.program.memory.activations / pieces + 2 * written + trained,
        moved_bytes=operations.moved_bytes / pieces,
        strided_bytes=operations.strided_bytes / pieces,
        temporary_bytes=memory.temporaries,
        used_bytes=memory.total,
        collectives=_collectives(step, sample, topology),
        batch_bytes=sum(one.device_bytes for one in sample.program.arguments if one.is_per_replica),
    )


def memory_of(step: SampledStep, topology: ClusterTopology, batch: int) -> DeviceMemory:
    """What one device holds.

    Args:
        step: The step.
        topology: The devices.
        batch: The examples of each replica.

    Returns:
        The memory by kind.
    """
    program = step.at(batch).program
    here = program.num_logical_devices
    replicas, stage = topology.num_replicas, topology.stage
    variables = [one for one in program.state if one.slot_of is None]
    slots = [one for one in program.state if one.slot_of is not None]
    temporaries = step.temporaries(batch)
    trained = sum(one.num_bytes for one in _trainable(program))
    temporaries -= _scattered(trained, stage, replicas)
    temporaries += _scattered(trained, step.stage, step.num_replicas)
    if stage == step.stage == 3:
        temporaries = step.temporaries(batch)
    return DeviceMemory(
        variables=sum(_bytes_of(one, replicas, stage >= 3, step.stage >= 3) for one in variables),
        slots=sum(_bytes_of(one, replicas, stage >= 1, step.stage >= 1) for one in slots),
        arguments=program.memory.arguments,
        outputs=step.at_hand.memory.outputs,
        temporaries=max(temporaries, 0.0) * here / topology.logical_devices,
        constants=program.memory.constants + program.memory.code,
    )


def _scattered(trained: float, stage: int, replicas: int) -> float:
    """What the reduced gradients are smaller for being parts."""
    return trained * (1 - 1 / replicas) if stage >= 2 else 0.0


def _bytes_of(state: StepState, replicas: int, is_split: bool, was_split: bool) -> float:
    """What one device holds of a variable or slot.

    Args:
        state: The variable.
        replicas: How many replicas there are.
        is_split: Whether variables of its kind are split.
        was_split: Whether they are in the step at hand, so that its layout says if it is one of
            those that are left whole.
    """
    size = math.prod(state.shape)
    itemsize = state.num_bytes // max(size, 1)
    is_split = is_split and (state.is_trainable or state.slot_of is not None)
    can_be = state.layout == IN_PARTS if was_split else size >= replicas > 1
    if is_split and can_be:
        return -(-size // replicas) * itemsize
    return state.num_bytes if state.layout == IN_PARTS else state.device_bytes


def _trainable(program: StepProgram) -> list[StepState]:
    return [one for one in program.state if one.is_trainable and one.is_written]


# -- collectives ---------------------------------------------------------------------------------


def _collectives(
    step: SampledStep, sample: Sample, topology: ClusterTopology
) -> tuple[Collective, ...]:
    program, replicas = sample.program, topology.num_replicas
    # XLA may have put some together, or left some out, whatever the batch
    found = list(step.at_hand.collectives if sample.batch == step.batch else program.collectives)
    if topology.stage != step.stage:
        trained = {one.name for one in _trainable(program)}
        found = [one for one in found if not trained.intersection(one.variables)]
        found += _of_stage(program, topology.stage, step.num_replicas)
    scaled = [_among(one, program, replicas, topology.logical_devices) for one in found]
    if topology.logical_devices > 1 and step.at_hand.num_logical_devices == 1:
        scaled.insert(0, _between_pieces(step, sample, topology.logical_devices))
    return tuple(one for one in scaled if one.group_size > 1)


def _among(
    collective: Collective, program: StepProgram, replicas: int, logical_devices: int
) -> Collective:
    """The same collective with other numbers of devices."""
    if collective.over == LOGICAL_DEVICES:
        return dataclasses.replace(collective, group_size=logical_devices)
    size = replicas
    if collective.over != REPLICAS:
        size *= logical_devices
    elif collective.group_size != program.num_replicas:  # groups that the user chose
        size = min(collective.group_size, replicas)
    operands = collective.operand_bytes
    if collective.kind == "all-gather":
        operands = tuple(-(-one * collective.group_size // size) for one in operands)
    return dataclasses.replace(collective, group_size=size, operand_bytes=operands)


def _of_stage(program: StepProgram, stage: int, replicas: int) -> list[Collective]:
    """What a stage of ``Sharding`` sends for the parameters, among the replicas at hand."""
    sizes, packed = [], 0
    names = tuple(one.name for one in _trainable(program))
    for one in _trainable(program):
        if math.prod(one.shape) < PACKED_BELOW:
            packed += one.num_bytes
        else:
            sizes.append(one.num_bytes)
    wholes = tuple(sizes) + ((packed,) if packed else ())
    if not wholes:
        return []
    parts = tuple(-(-one // replicas) for one in wholes)

    def of(kind: str, operands: tuple[int, ...]) -> Collective:
        return Collective(kind, operands, ("float32",), replicas, variables=names)

    gather = of("all-gather", parts)
    if stage < 2:
        return [of("all-reduce", wholes), *([gather] if stage else [])]
    scatter = of("reduce-scatter", wholes)
    return [gather, scatter] if stage == 3 else [scatter, gather]


def _between_pieces(step: SampledStep, sample: Sample, logical_devices: int) -> Collective:
    """What the devices of a replica exchange if the step is cut, though it is not yet."""
    other = step.at(max(sample.batch // 2, 1) if sample.batch != 1 else 2)
    sizes = {each.batch: _result_bytes(each) for each in (sample, other)}
    slope = 0.0
    if sample.batch != other.batch:
        slope = (sizes[sample.batch] - sizes[other.batch]) / (sample.batch - other.batch)
    exchanged = math.ceil(max(slope, 0.0) * sample.batch / 2)
    return Collective(
        "all-reduce", (exchanged,), ("float32",), logical_devices, over=LOGICAL_DEVICES
    )


def _result_bytes(sample: Sample) -> float:
    return sum(product.result_bytes * product.count for product in sample.operations.products)
