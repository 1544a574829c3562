"""An embedded transport whose workers are lost as a test says; calls and threads are real."""

import threading

from replicax.parameter_server.embedded import EmbeddedTransport
from replicax.parameter_server.server import ServerState
from replicax.parameter_server.transport import ServerGoneError, WorkerGoneError
from replicax.parameter_server.worker import WorkerState


class StagingServer:
    """A server whose caller may be gone before or after it has staged something there."""

    def __init__(self, server, index, is_lost):
        self._server, self._index, self._is_lost = server, index, is_lost

    def __getattr__(self, name):
        return getattr(self._server, name)

    def stage(self, attempt, updates):
        for step in (lambda: None, lambda: self._server.stage(attempt, updates)):
            step()
            if self._is_lost(self._index, attempt):
                raise WorkerGoneError(f"worker {self._index} was killed", self._index)


class FailingTransport(EmbeddedTransport):
    """Workers that go, and come back as new ones after a moment."""

    def __init__(self, is_lost, *, num_workers, num_servers):
        super().__init__(num_workers=num_workers, num_servers=num_servers)
        self._is_lost = is_lost
        self.workers = [self._new(index) for index in range(num_workers)]
        self._listener = None

    def _new(self, index):
        def is_lost(index, attempt):
            if not self._is_lost(index, attempt):
                return False
            threading.Timer(0.02, self._come_back, args=[index]).start()
            return True

        servers = [StagingServer(server, index, is_lost) for server in self.servers]
        return WorkerState(index, servers)

    def _come_back(self, index):
        self.workers[index] = self._new(index)
        self._listener.worker_joined(index)

    def watch(self, listener):
        self._listener = listener


class MortalServer:
    """A server that may be gone before or after any call; another one takes its place."""

    def __init__(self, index, is_lost):
        self.index, self._is_lost = index, is_lost
        self.state = ServerState()

    def __getattr__(self, name):
        def call(*arguments):
            state = self.state
            for step in (lambda: None, lambda: getattr(state, name)(*arguments)):
                result = step()
                if self.state is not state or self._is_lost(self, name):
                    raise ServerGoneError(f"server {self.index} was killed.", self.index)
            return result

        return call


class MortalTransport(FailingTransport):
    """Servers, and workers, that go, and are replaced after a moment; or not, as a test says."""

    def __init__(self, is_server_lost, is_worker_lost, *, num_workers, num_servers):
        super().__init__(is_worker_lost, num_workers=num_workers, num_servers=num_servers)
        self._is_server_lost = is_server_lost
        self._dying = threading.Lock()
        self.servers = [MortalServer(index, self._lost) for index in range(num_servers)]
        self.workers = [self._new(index) for index in range(num_workers)]

    def _lost(self, server, name):
        return self._is_server_lost(server.index, name) and self.kill(server.index)

    def kill(self, index, *, replaced=True):
        """What a server held is gone."""
        server = self.servers[index]
        with self._dying:
            if isinstance(server.state, Nobody):
                return True
            server.state = Nobody(index)
        self._listener.server_lost(index, f"server {index} was killed.")
        if replaced:
            threading.Timer(0.02, self._replace, args=[server]).start()
        return True

    def _replace(self, server):
        server.state = ServerState(replaces=server.index)
        self._listener.server_joined(server.index)


class Nobody:
    """Who answers for a server that is gone."""

    def __init__(self, index):
        self._index = index

    def __getattr__(self, name):
        raise ServerGoneError(f"server {self._index} was killed.", self._index)


class LosingServer:
    """A server that is gone after so many commits."""

    def __init__(self, server, commits):
        self._server, self._commits = server, commits

    def __getattr__(self, name):
        return getattr(self._server, name)

    def commit(self, attempt):
        self._commits -= 1
        if self._commits < 0:
            raise ServerGoneError("server 1 was killed", 1)
        return self._server.commit(attempt)
