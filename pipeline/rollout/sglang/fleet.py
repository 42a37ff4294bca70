"""The servers of a cell as one: requests go to the least busy of them, and one that dies or hangs is started again.

A server is lost when its process ends, when it fails a request and then its health check, or when with requests outstanding it
makes no progress for `servers.stall_timeout_s`: it answers nothing, and what it tells of its load stands still. (Responses that all
run into a long cap can take longer than that to come, but tokens are added to the cache meanwhile.) Whoever was waiting for it gets
ServerLost and may ask again; the fleet ends the process, starts another, has the published version loaded into it, and only then
sends it requests. More than MAX_RESTARTS for one version is EngineDied.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from pipeline.processes.errors import EngineDied
from pipeline.processes.hosts import free_port
from pipeline.processes.process import Process, ProcessSpec
from pipeline.rollout.sglang.client import ServerClient, ServerLost
from pipeline.rollout.sglang.publication import Target
from pipeline.rollout.sglang.server import wait_until_healthy
from pipeline.sections import ServerSettings

MAX_RESTARTS = 3
_START_ATTEMPTS = 3  # another process may take the port between its choice and the server's start
_WATCH_S = 0.5
_LOAD_S, _LOADS_PER_STALL = 30.0, 4  # a silent server is asked for its load so often, and at least so often in the stall timeout
_OTHER_FILES = 256  # what else this process may hold open
T = TypeVar("T")

SpecOf = Callable[[int, int], ProcessSpec]  # (number of the server, port) -> its process
Reload = Callable[[Target], Awaitable[None]]


class Server:
    """One server of the fleet and what is known of it. target: None until it is started."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.target: Target | None = None
        self.ready = False  # it may be sent requests
        self.suspect = False  # it failed one, and has to pass its health check before the next
        self.outstanding = 0
        self.progressed = 0.0  # when it last did: answered a request, or told a load that differs from the one before
        self.load: tuple[int, ...] | None = None  # when last asked, which was at `asked`
        self.asked = 0.0
        self.restarting = asyncio.Lock()  # held by whoever decides on a restart and carries it out

    def began(self) -> None:
        if self.outstanding == 0:
            self.progress()
        self.outstanding += 1

    def progress(self) -> None:
        self.progressed = self.asked = time.monotonic()

    async def ask_load(self) -> None:
        """Progress is dated back to the question before, so that a server that stops right after it is not given more time."""
        assert self.target is not None
        before, asked, self.asked = self.load, self.asked, time.monotonic()
        self.load = await self.target.client.load()
        if None not in (before, self.load) and before != self.load:
            self.progressed = max(self.progressed, asked)


class Fleet:
    """settings: the section `servers`. reload: loads the current version into a server that was started again."""

    def __init__(self, settings: ServerSettings, spec_of: SpecOf, logs: Path, key: str | None, reload: Reload) -> None:
        self.settings, self.spec_of, self.logs, self.key, self.reload = settings, spec_of, logs, key, reload
        self.servers = [Server(number) for number in range(settings.num_servers)]
        self.restarts = 0  # since the newest version
        self._watching = False  # off during a publication, which notices a lost server itself
        self._changed = asyncio.Condition()
        self._clients: list[ServerClient] = []

    @property
    def targets(self) -> list[Target]:
        return [server.target for server in self.servers if server.target is not None]

    async def start(self) -> None:
        """Start all servers and wait until they are healthy. They hold no published version yet."""
        await asyncio.gather(*(self._start(server) for server in self.servers))

    async def generate(self, body: Mapping[str, Any], decode: Callable[[bytes], T], pool: Executor) -> T:
        """The decoded answer of the least busy server; ServerLost where it is lost meanwhile."""
        server = await self._acquire()
        try:
            assert server.target is not None
            return await server.target.client.generate(body, decode, pool)
        except ServerLost:
            server.suspect = True
            raise
        finally:
            if not server.suspect:
                server.progress()
            server.outstanding -= 1
            async with self._changed:
                self._changed.notify()

    async def watch(self) -> None:
        """Look after the servers until cancelled. Raises EngineDied where one cannot be kept up."""
        await asyncio.gather(*(self._watch(server) for server in self.servers))

    async def _watch(self, server: Server) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if self._watching:
                async with server.restarting:
                    await self._look_after(server)

    async def pause(self) -> None:
        """Stop looking after the servers, until `admit_all`. Returns once no restart is under way; restarts count from here."""
        self._watching = False
        for server in self.servers:
            async with server.restarting:
                pass
        self.restarts = 0

    async def restart_all(self, reason: str) -> None:
        """Start all servers again while paused, with the current version."""
        for server in self.servers:
            server.ready = False
        await asyncio.gather(*(self._restart(server, reason) for server in self.servers))

    async def close(self) -> None:
        """End all processes and connections."""
        await asyncio.gather(*(asyncio.to_thread(target.process.stop) for target in self.targets))
        for client in self._clients:
            await client.close()

    async def _acquire(self) -> Server:
        async with self._changed:
            while True:
                free = [
                    server
                    for server in self.servers
                    if server.ready and not server.suspect and server.outstanding < self.settings.requests_in_flight
                ]
                if free:
                    chosen = min(free, key=lambda server: server.outstanding)
                    chosen.began()
                    return chosen
                await self._changed.wait()

    async def _look_after(self, server: Server) -> None:
        if not self._watching or not server.ready or server.target is None:  # watching may have ended while this waited
            return
        limit = self.settings.stall_timeout_s
        if server.outstanding and time.monotonic() - server.asked > min(_LOAD_S, limit / _LOADS_PER_STALL):
            await server.ask_load()
        if server.target.process.exit_code is not None:
            await self._restart(server, server.target.process.death())
        elif server.outstanding and time.monotonic() - server.progressed > limit:
            await self._restart(server, f"it answered nothing for servers.stall_timeout_s {limit:g}, and its load stood still")
        elif server.suspect and not await server.target.client.healthy():
            await self._restart(server, "it failed a request and then its health check")
        elif server.suspect:
            server.suspect = False
            async with self._changed:
                self._changed.notify_all()

    async def _restart(self, server: Server, reason: str) -> None:
        server.ready = False
        while True:
            assert server.target is not None
            self.restarts += 1
            print(f"rollout server {server.number} is started again: {reason}", flush=True)
            await asyncio.to_thread(server.target.process.stop)
            if self.restarts > MAX_RESTARTS * len(self.servers):
                raise EngineDied(
                    f"the rollout servers were lost {self.restarts} times with one version of the weights; "
                    f"the last time server {server.number}: {reason}"
                )
            try:
                await self._start(server)
                await self.reload(server.target)
            except EngineDied as error:
                reason = str(error)
            else:
                return await self._admit(server)

    async def admit_all(self) -> None:
        """Let requests reach the servers, which now hold a published version, and look after them."""
        for server in self.servers:
            await self._admit(server)
        self._watching = True

    async def _admit(self, server: Server) -> None:
        server.ready, server.suspect, server.load = True, False, None
        server.progress()
        async with self._changed:
            self._changed.notify_all()

    async def _start(self, server: Server) -> None:
        for attempt in range(1, _START_ATTEMPTS + 1):
            port = free_port()
            spec = self.spec_of(server.number, port)
            process = Process(spec, self.logs / f"{spec.name}.log")
            client = ServerClient(f"http://{spec.host.address}:{port}", self.key, self.settings.requests_in_flight)
            self._clients.append(client)
            server.target = Target(client, process)
            try:
                return await wait_until_healthy(process, client, self.settings.startup_timeout_s)
            except EngineDied as error:
                await asyncio.to_thread(process.stop)
                if attempt == _START_ATTEMPTS or "in use" not in str(error):
                    raise


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files so that `count` connections fit, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ValueError(
            f"servers.num_servers x servers.requests_in_flight is {count}, but this process may open {hard} files (ulimit -Hn); "
            "lower servers.requests_in_flight"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
