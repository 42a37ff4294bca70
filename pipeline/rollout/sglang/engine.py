"""SGLangEngine: the RolloutEngine whose responses come from SGLang servers.

A thread of its own runs an event loop that carries out loads and generations in the order in which they were asked for:
generations of one version run side by side, a load waits for those before it, and what follows waits for the load. So no
response spans two versions - and each is checked: one that was aborted, lost with its server, or stamped with another version
than the loaded one is thrown away and generated again, alone. A failed load reaches the caller through the generations that
follow it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.config import CellSettings
from pipeline.processes.errors import EngineDied
from pipeline.processes.hosts import Host, cell_hosts
from pipeline.processes.placement import Place, place
from pipeline.processes.scratch import scratch_folder
from pipeline.published_weights import PublishedWeights
from pipeline.records import Request, Response
from pipeline.rollout.engine import Generation, SamplingSettings
from pipeline.rollout.sglang.client import Refused, ServerLost, generate_body
from pipeline.rollout.sglang.decode import Expected, Unusable, decode_response
from pipeline.rollout.sglang.fleet import Fleet, SpecOf, allow_connections
from pipeline.rollout.sglang.publication import Checksum, Publication, Publisher, Route, Target
from pipeline.rollout.sglang.server import sections, server_spec

_MAX_ATTEMPTS = 8  # for one response
_DECODERS = 4

Command = PublishedWeights | tuple[Sequence[Request], SamplingSettings, "Future[Generation]"]


class SGLangEngine:
    """RolloutEngine over the servers of `settings`.

    model: the base policy's folder, from which the servers start.  stop_token_ids: what ends a response.  logs: a folder for the
    servers' output.  hosts: where it runs, if not on those of the job.  text: the servers take prompts in text too (lm-eval).
    spec_of: what to start instead of SGLang, for tests.
    publications: a row for every version that reached the servers, in order.
    """

    def __init__(
        self,
        settings: CellSettings,
        model: Path,
        stop_token_ids: Sequence[int],
        logs: Path,
        hosts: Sequence[Host] = (),
        text: bool = False,
        spec_of: SpecOf | None = None,
    ) -> None:
        servers, cluster = sections(settings)
        allow_connections(servers.num_servers * servers.requests_in_flight)
        placement = place(settings)
        self.settings, self.servers, self.stop_token_ids = settings, servers, tuple(stop_token_ids)
        self.publications: list[Publication] = []
        self._scratch = scratch_folder(cluster.scratch, "rollout-")
        key = secrets.token_hex(32) if cluster.num_nodes > 1 else None
        hosts = tuple(hosts) or cell_hosts(cluster.num_nodes)
        self._publisher = Publisher(settings, logs, hosts[0].address)
        self._key_file = _write_key(logs / "servers-key.yaml", key) if key else None
        # the scratch folder is the first node's; servers that cannot read it get a version by broadcast alone, after a restart too
        self._readers = [number for number, where in enumerate(placement.servers) if cluster.scratch_shared or where.node == 0]
        self._from_scratch: Route = "disk" if len(self._readers) == servers.num_servers else "distributed"
        self._fleet = Fleet(servers, spec_of or self._specs(model, hosts, placement.servers, text), logs, key, self._reload)
        self._current: tuple[PublishedWeights, Path] | None = None
        self._checksum: Checksum | None = None
        self._error: BaseException | None = None  # why no command is accepted any more
        self._watch_error: BaseException | None = None
        self._lock = threading.Lock()
        self._unanswered: set[Future[Generation]] = set()
        self._pool = ThreadPoolExecutor(min(_DECODERS, os.cpu_count() or 1), thread_name_prefix="decode")
        self._loop = asyncio.new_event_loop()
        self._commands: asyncio.Queue[Command] = asyncio.Queue()
        self._main = self._loop.create_task(self._obey())
        self._thread = threading.Thread(target=self._run, name="sglang-engine", daemon=True)
        self._thread.start()

    def _specs(self, model: Path, hosts: Sequence[Host], placed: Sequence[Place], text: bool) -> SpecOf:
        replay = self.settings.resolved_method().routing_replay
        return lambda number, port: server_spec(
            self.settings,
            number,
            placed[number],
            model,
            port,
            host=hosts[placed[number].node],
            key_file=self._key_file,
            routed_experts=replay,
            text=text,
        )

    @property
    def endpoints(self) -> list[str]:
        """The servers' addresses, once something was generated."""
        return [target.client.url for target in self._fleet.targets]

    def load(self, published: PublishedWeights) -> None:
        self._submit(published)

    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> Future[Generation]:
        future: Future[Generation] = Future()
        self._submit((tuple(requests), sampling, future))
        future.add_done_callback(self._unanswered.discard)
        return future

    def close(self) -> None:
        """End the servers, whatever they are doing; outstanding futures raise EngineDied."""
        with self._lock:
            if self._error is None:
                self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()

    def _submit(self, command: Command) -> None:
        with self._lock:  # a command is either refused here or seen by the thread, which answers all that it has seen
            if self._error is not None:
                raise self._error
            if not isinstance(command, PublishedWeights):
                self._unanswered.add(command[2])
            self._loop.call_soon_threadsafe(self._commands.put_nowait, command)

    def _run(self) -> None:
        """The thread's life: obey until closed or failed, then answer what is left and end the servers."""
        self._loop.run_until_complete(asyncio.wait([self._main]))
        failure = self._watch_error if self._main.cancelled() else self._main.exception()
        error = failure or EngineDied("the rollout engine was closed while work was outstanding")
        with self._lock:
            self._error = error
        for future in tuple(self._unanswered):
            future.set_exception(error)
        self._loop.run_until_complete(self._fleet.close())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
        self._pool.shutdown()
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _obey(self) -> None:
        """Carry out commands until cancelled. Raises what makes all later ones impossible."""
        generations: set[asyncio.Task[Generation]] = set()
        watch = asyncio.create_task(self._fleet.watch())
        watch.add_done_callback(self._watch_ended)
        try:
            await self._fleet.start()
            while True:
                command = await self._commands.get()
                if isinstance(command, PublishedWeights):
                    if generations:
                        await asyncio.wait(generations)
                    await self._publish(command)
                else:
                    requests, sampling, future = command
                    task = asyncio.create_task(self._generate(requests, sampling))
                    generations.add(task)
                    task.add_done_callback(generations.discard)
                    task.add_done_callback(partial(_answer, future))
        finally:
            for task in (watch, *generations):
                task.cancel()
            await asyncio.wait([watch, *generations])

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        """Servers that cannot be kept up end everything."""
        if not watch.cancelled() and (error := watch.exception()) is not None:
            self._watch_error = error
            self._main.cancel()

    async def _publish(self, published: PublishedWeights) -> None:
        """Bring a version into all servers. Where one is lost or refuses, all start again and get it by the simplest route."""
        folder = published.folder or self._scratch / f"{len(self.publications)}_version_{published.version}"
        if published.folder is None:
            await asyncio.to_thread(published.write, folder)
        await self._fleet.pause()  # a restart under way still loads the version before
        before, self._current, self._checksum = self._current, (published, folder), None
        try:
            done, checksum = await self._publish_by(self.servers.publication, published, folder)
        except (ServerLost, Refused) as error:
            await self._fleet.restart_all(str(error))
            done, checksum = await self._publish_by(self._from_scratch, published, folder)
        self._checksum = checksum
        self.publications.append(done)
        await self._fleet.admit_all()
        if before is not None and before[1].is_relative_to(self._scratch):
            shutil.rmtree(before[1])

    async def _publish_by(self, route: Route, published: PublishedWeights, folder: Path) -> tuple[Publication, Checksum]:
        """By `route` into all servers; where it is due, compared with what those hold that can read the folder."""
        targets, due = self._fleet.targets, len(self.publications) % self.servers.verify_interval == 0
        verifiers = [targets[number] for number in self._readers] if due else []
        return await self._publisher.publish(targets, published, folder, route, verifiers)

    async def _reload(self, target: Target) -> None:
        """Load the published version into a server that was started again, and compare with what it held before."""
        assert self._current is not None  # servers are watched only while they hold a version
        published, folder = self._current
        _, checksum = await self._publisher.publish([target], published, folder, self._from_scratch)
        if self._checksum not in (None, checksum):
            raise EngineDied(
                f"{target.process.spec.name} holds other weights under version {published.version} than before its restart: "
                f"checksum {checksum} instead of {self._checksum}"
            )

    async def _generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> Generation:
        started = time.perf_counter()
        if self._current is None:
            raise ValueError("a generation was asked for before any weights were loaded")
        expected = Expected(self._current[0].version, self.settings.model, sampling.return_routed_experts)
        bodies = [generate_body(request, sampling, self.stop_token_ids, expected.model.vocab_size) for request in requests]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._respond(request, body, expected)) for request, body in zip(requests, bodies, strict=True)
            ]
        return Generation(tuple(task.result() for task in tasks), time.perf_counter() - started)

    async def _respond(self, request: Request, body: dict[str, Any], expected: Expected) -> Response:
        """One response of the expected version, asked for again while it is lost or unusable."""
        decode = partial(decode_response, request=request, expected=expected)
        reason = ""
        for _ in range(_MAX_ATTEMPTS):
            try:
                return await self._fleet.generate(body, decode, self._pool)
            except (ServerLost, Unusable) as error:
                reason = str(error)
        raise EngineDied(f"a response could not be generated in {_MAX_ATTEMPTS} attempts; the last: {reason}")


def _write_key(path: Path, key: str) -> Path:
    """The servers' key as a file, not on the command line, which every user of a machine can read; all nodes read the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(f"api-key: {key}\n", encoding="utf-8")
    return path


def _answer(future: Future[Generation], task: asyncio.Task[Generation]) -> None:
    """Pass on what became of a generation; one that was cancelled is answered by the engine's end."""
    if task.cancelled():
        return
    error = task.exception()
    if isinstance(error, BaseExceptionGroup):  # of its responses; the first has cancelled the others
        error = error.exceptions[0]
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
