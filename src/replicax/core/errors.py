"""Every error Replicax raises on purpose.

The class says which kind of mistake it was; it always derives from the built-in
type that a user would catch anyway. Some are defined where they are raised::

    ReplicaxError
    ├── ContextError (RuntimeError)          called in the wrong context
    ├── StaleReadError (RuntimeError)        a trace that Replicax did not start reads a variable
    ├── RendezvousError (RuntimeError)       eager replicas did not all reach the same meeting
    ├── LostVariableError (RuntimeError)     a variable whose buffer was taken
    ├── DeletedValueError (RuntimeError)     the user deleted or donated a part of a value
    ├── DeviceError (RuntimeError)           devices cannot be configured any more
    ├── UnknownDeviceError (ValueError)      a device that does not exist, or exists twice
    ├── ClusterError (ValueError)            a cluster, task or address that cannot be right
    ├── ClusterPlatformError (RuntimeError)  the platform does not tell who is in the cluster
    │   ├── PlatformApiError                 its HTTP API answers with an error
    │   └── PlatformReplyError (ClusterError)  what it says cannot be right
    ├── WorkerLostError (RuntimeError)       another worker has gone, or did not come in time
    ├── WorkersDifferError (RuntimeError)    the workers do not run the same program
    ├── HostCallbackError (RuntimeError)     a host callback of a step raised
    ├── VariableError (ValueError)           creation or assignment that cannot be right
    ├── InPlaceOperatorError (RuntimeError)  ``v += x``, which does not assign the variable
    ├── DistributedValueError (ValueError)   a per-replica value in the wrong place
    ├── PerReplicaUseError (TypeError)       a per-replica value used as if it were one array
    ├── ForeignStateError (TypeError)        a step with state that another library changes in place
    ├── ReductionError (ValueError)          an unknown reduction, or shapes that do not fit it
    ├── BatchError (ValueError)              a batch that cannot be divided or placed
    ├── OneShotError (ValueError)            a source that serves one pass was asked for another
    ├── DamagedFileError (ValueError)        a file of records that is cut off or was changed
    ├── ShardingError (ValueError)           input that cannot be divided among the workers
    ├── InputStateError (ValueError)         a saved position that means another one here
    ├── ReplicationModeError (NotImplementedError)  a replication mode that this call does not have
    ├── OutOfRangeError (IndexError)         an iterator that ended before the steps did
    ├── TraceError (ValueError)              a program that would drift, hang or never settle
    │   ├── DivergentCollectiveError         a collective that only some replicas would reach
    │   ├── RematWriteError                  a write inside jax.checkpoint, which would happen twice
    │   ├── UnknownCollectiveError           an operation on the replicas of which nothing is known
    │   ├── StalePredicateError              a while loop that would not see a write of its body
    │   └── LockstepError                    kinds of replicas that do not make the same collectives
    ├── SignatureError (ValueError)          arguments that do not match an ``input_signature``
    ├── MetricError (ValueError)             a metric got values that do not fit each other
    ├── LossError (ValueError)               a loss that cannot be scaled, or is scaled already
    ├── CheckpointMismatchError (ValueError)  saved values that do not fit the objects they are for
    ├── DamagedCheckpointError (ValueError)  a checkpoint that is incomplete or was changed
    ├── CheckpointNotFoundError (FileNotFoundError)  a path without a checkpoint
    ├── CheckpointWriteError (OSError)       a checkpoint that could not be written
    ├── CheckpointObjectError (TypeError)    an object that a checkpoint cannot save
    ├── SavedModelError (ValueError)         a model that cannot be saved, or loaded from its files
    ├── SummaryError (ValueError)            a summary of something that is none of its kind
    ├── SimulationError (ValueError)         a step that cannot be simulated
    ├── ClosureCancelledError (RuntimeError)  a closure that was not run, as one before it failed
    ├── TaskGoneError (RuntimeError)         a task of parameter servers does not answer
    │   ├── WorkerGoneError                  a worker; what it ran may be run elsewhere
    │   └── ServerGoneError                  a parameter server, with what it held
    ├── FencedError (RuntimeError)           an attempt at a closure that has been given up
    ├── TokenError (ConnectionError)         a peer without the token of the cluster
    ├── MessageError (ValueError)            bytes of a peer that are no message
    ├── OtherWorkerError (RuntimeError)      another worker could not save or restore
    ├── JsonError (ValueError)               text from outside that is no JSON, or beyond the bounds
    │   └── RepeatedNameError                an object with two entries of one name
    ├── UnmatchedValuesError (AssertionError)  saved values, or objects, that are left over
    └── CheckError (AssertionError)          a check of ``replicax.testing`` found a difference
"""

_MOST_CHARACTERS = 3000


class ReplicaxError(Exception):
    """Base of all errors that Replicax raises on purpose.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> try:
        ...     float(strategy.distribute_batch([1.0, 2.0]))
        ... except rx.ReplicaxError as error:
        ...     print(type(error).__name__, isinstance(error, TypeError))
        PerReplicaUseError True
    """


class ContextError(ReplicaxError, RuntimeError):
    """A call in a context where it has no meaning."""


class StaleReadError(ReplicaxError, RuntimeError):
    """A variable was touched inside a trace that Replicax did not start."""


class RendezvousError(ReplicaxError, RuntimeError):
    """Some replicas reached a meeting point and others did not."""


class LostVariableError(ReplicaxError, RuntimeError):
    """The variable's buffer went down with an execution that failed, or was given away."""


class DeletedValueError(ReplicaxError, RuntimeError):
    """A part of a distributed value has been deleted or donated."""


class DeviceError(ReplicaxError, RuntimeError):
    """Devices cannot be configured, usually because JAX has already started."""


class UnknownDeviceError(ReplicaxError, ValueError):
    """A device specification that names no device, or one device twice."""


class ClusterError(ReplicaxError, ValueError):
    """A description of a cluster, a task in it or an address that cannot be right."""

    def __init__(self, message: str) -> None:
        """An error whose message is cut if the description is long."""
        super().__init__(_cut(message))


class ClusterPlatformError(ReplicaxError, RuntimeError):
    """The platform that should know the cluster is not there, or does not answer."""

    def __init__(self, message: str) -> None:
        """An error whose message is cut if what the platform said is long."""
        super().__init__(_cut(message))


def _cut(message: str) -> str:
    half = _MOST_CHARACTERS // 2
    return message if len(message) <= 2 * half else f"{message[:half]} ... {message[-half:]}"


class PlatformReplyError(ClusterPlatformError, ClusterError):
    """The platform tells who is in the cluster, but what it says cannot be right."""


class WorkerLostError(ReplicaxError, RuntimeError):
    """Another worker has gone, or did not reach an operation of all workers in time.

    Attributes:
        workers: The ranks of the missing workers, as far as they are known.
    """

    def __init__(self, message: str, workers: tuple[int, ...] = ()) -> None:
        """An error that names the missing `workers`."""
        super().__init__(message)
        self.workers = workers


class WorkersDifferError(ReplicaxError, RuntimeError):
    """The workers do not do the same, so that an operation of all of them would hang or drift."""


class HostCallbackError(ReplicaxError, RuntimeError):
    """A host callback raised inside a program over several devices."""


class VariableError(ReplicaxError, ValueError):
    """A variable cannot be created or assigned like this."""


class InPlaceOperatorError(ReplicaxError, RuntimeError):
    """An operator such as ``+=`` on a variable, which would only give its name to an array."""


class DistributedValueError(ReplicaxError, ValueError):
    """A per-replica value was given where one value is needed."""


class PerReplicaUseError(ReplicaxError, TypeError):
    """A per-replica value was used as if it were a single array."""


class ForeignStateError(ReplicaxError, TypeError):
    """A step was given an object that another library changes in place."""


class ReductionError(ReplicaxError, ValueError):
    """A reduction that is not defined for these values."""


class BatchError(ReplicaxError, ValueError):
    """A batch, argument or initial value that cannot be divided or placed."""


class OneShotError(ReplicaxError, ValueError):
    """A source of input that can be read once was asked for a second pass."""


class ShardingError(ReplicaxError, ValueError):
    """Input cannot be divided among the workers in the way that was asked for."""


class InputStateError(ReplicaxError, ValueError):
    """The saved state of an iterator does not fit the dataset it is given to."""


class ReplicationModeError(ReplicaxError, NotImplementedError):
    """A replication mode of input that the call does not have."""


class OutOfRangeError(ReplicaxError, IndexError):
    """An iterator ended before as many steps had run as were asked for.

    Example:
        >>> import replicax as rx
        >>> iterator = iter(rx.MirroredStrategy(["CPU:0"]).distribute_dataset([1.0], batch_size=1))
        >>> _ = iterator.get_next()
        >>> iterator.get_next()
        Traceback (most recent call last):
        ...
        replicax.core.errors.OutOfRangeError: the iterator has ended...
    """


class TraceError(ReplicaxError, ValueError):
    """A traced program that would drift apart, hang, or create variables for ever."""


class SignatureError(ReplicaxError, ValueError):
    """Arguments that do not match the declared ``input_signature``."""


class MetricError(ReplicaxError, ValueError):
    """A metric got values, weights or settings that do not fit each other."""


class LossError(ReplicaxError, ValueError):
    """A loss that cannot be scaled, usually because it has been averaged already."""


class CheckError(ReplicaxError, AssertionError):
    """A check of ``replicax.testing`` found what it looked for."""
