"""Small sources that record what is read of them, and workers that run in threads."""

import threading

import numpy as np

from replicax.core.errors import OneShotError
from replicax.core.spec import TensorSpec
from replicax.input.source import UNKNOWN, BatchPart, FileSource, IndexedSource, Source
from replicax.input.topology import InputTopology


def batches_of(values, size):
    values = np.asarray(values)
    return [values[i : i + size] for i in range(0, len(values), size)]


class Stream(Source):
    """Reads whole batches only, in an order that depends on the epoch if asked."""

    description = "a test stream"

    def __init__(self, batches, *, batch_size=None, spec=None, shuffled=False, **known):
        self.batches = list(batches)
        self._batch_size = batch_size
        self._spec = spec
        self._shuffled = shuffled
        self._known = known
        self.opened = []
        self.read = []
        self.closed = 0
        self.owns_batches = known.get("owns_batches", False)

    @property
    def element_spec(self):
        return self._spec

    @property
    def cardinality(self):
        return self._known.get("cardinality", UNKNOWN)

    @property
    def batch_size(self):
        return self._batch_size

    @property
    def auto_shard_policy(self):
        return self._known.get("policy")

    def order(self, epoch):
        indices = np.arange(len(self.batches))
        return np.random.default_rng(epoch).permutation(indices) if self._shuffled else indices

    def open(self, *, epoch, start):
        self.opened.append((epoch, start))
        try:
            for index in self.order(epoch)[start:]:
                self.read.append(int(index))
                yield self.batches[index]
        finally:
            self.closed += 1


class Indexed(Stream, IndexedSource):
    """Can read parts, and records which examples it was asked for."""

    description = "a test index"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.parts = []

    def open_parts(self, part_of, *, epoch, start):
        self.opened.append((epoch, start))
        for index in self.order(epoch)[start:]:
            batch = self.batches[index]
            own = part_of(len(batch))
            self.parts.append((int(index), own.start, own.stop))
            yield BatchPart(batch[own], len(batch))


class Files(Stream, FileSource):
    """One file is a list of batches."""

    description = "a test reader"

    def __init__(self, contents, *, names=None, batch_size=None, spec=None, **known):
        self.contents = contents
        self.names = tuple(contents) if names is None else names
        batches = [batch for name in self.names for batch in contents[name]]
        super().__init__(batches, batch_size=batch_size, spec=spec, **known)

    @property
    def files(self):
        return self.names

    def of_files(self, files):
        return Files(
            self.contents,
            names=files,
            batch_size=self._batch_size,
            spec=self._spec,
            **self._known,
        )


class OneShot(Stream):
    """Serves one pass."""

    description = "a test generator"

    def open(self, *, epoch, start):
        if self.opened:
            raise OneShotError("a test generator was read before. Pass the function.")
        self.opened.append((epoch, start))
        iterator = iter(self.batches)
        for _ in range(start):
            next(iterator)
        return iterator


def int_spec(size=None, *rest):
    return TensorSpec((size, *rest), np.int64)


class Cluster:
    """Workers in threads, with a real agreement between them."""

    def __init__(self, num_workers, replicas_per_worker=1):
        self._barrier = threading.Barrier(num_workers, timeout=20)
        self._answers = [False] * num_workers
        self.num_asked = [0] * num_workers
        self.topologies = [
            InputTopology(num_workers, worker, replicas_per_worker, self._asker(worker))
            for worker in range(num_workers)
        ]

    def _asker(self, worker):
        def exchange(what, message):
            self.num_asked[worker] += 1
            self._answers[worker] = message
            self._barrier.wait()
            answers = list(self._answers)
            self._barrier.wait()
            return answers

        return exchange

    def run(self, work):
        """``work(topology)`` on every worker at once; the results, in the order of workers."""
        results = [None] * len(self.topologies)
        errors = []

        def task(topology):
            try:
                results[topology.worker_id] = work(topology)
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=task, args=(t,)) for t in self.topologies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        if errors:
            raise errors[0]
        return results


def topologies(num_workers, replicas_per_worker=1):
    """All workers of a cluster, for rules that need no agreement."""
    return [
        InputTopology(num_workers, worker, replicas_per_worker) for worker in range(num_workers)
    ]


def parts_of(step):
    """The parts of the first leaf of a step, as lists."""
    return [np.asarray(part).tolist() for part in step.shares[0].local_parts()]


def values_of(value):
    """The components of a per-replica value (or a bare one), as lists."""
    components = getattr(value, "values", (value,))
    return [np.asarray(component).tolist() for component in components]
