"""The fleet of fake servers: a restart and a publication never have one server at the same time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.processes.process import ProcessSpec
from pipeline.rollout.sglang import fleet as module
from pipeline.rollout.sglang.fleet import Fleet
from pipeline.rollout.sglang.publication import Target
from tests.unit import fake_sglang


class Watched:
    """A fleet of two servers that is watched closely; a restarted one loads its version once `go` is set."""

    def __init__(self, folder: Path) -> None:
        self.started: list[int] = []
        self.folder, self.reloading, self.go = folder, asyncio.Event(), asyncio.Event()
        overrides = {"preset": "rehearsal", "servers": {"num_servers": 2, "startup_timeout_s": 20}}
        settings = load_settings(overrides=overrides).cell(Cell("grpo", "1", 0)).servers
        assert settings is not None
        self.fleet = Fleet(settings, self.spec_of, folder / "logs", None, self.reload)

    def spec_of(self, number: int, port: int) -> ProcessSpec:
        self.started.append(number)
        words = (sys.executable, fake_sglang.__file__, str(port), str(self.folder), "64", "2", "16", "4")
        return ProcessSpec(f"server-{number}", words)

    async def reload(self, target: Target) -> None:
        self.reloading.set()
        await self.go.wait()

    async def lose(self, number: int) -> None:
        await asyncio.to_thread(self.fleet.targets[number].process.stop)


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Watched], Coroutine[Any, Any, None]]) -> None:
    monkeypatch.setattr(module, "_WATCH_S", 0.01)

    async def run() -> None:
        case = Watched(folder)
        async with asyncio.timeout(60):
            await case.fleet.start()
            await case.fleet.admit_all()
            watch = asyncio.create_task(case.fleet.watch())
            try:
                await scenario(case)
                assert not watch.done()
            finally:
                watch.cancel()
                await case.fleet.close()

    asyncio.run(run())


def test_a_pause_waits_for_the_restart_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(case: Watched) -> None:
        await case.lose(1)
        await case.reloading.wait()
        pause = asyncio.create_task(case.fleet.pause())
        await asyncio.sleep(0.1)
        assert not pause.done()
        case.go.set()
        await pause
        assert case.fleet.servers[1].ready
        assert (sorted(case.started), case.fleet.restarts) == ([0, 1, 1], 0)

    watched(tmp_path, monkeypatch, scenario)


def test_a_server_lost_during_a_pause_is_started_again_by_the_publication_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(case: Watched) -> None:
        case.go.set()
        await case.fleet.pause()
        await case.lose(0)
        await asyncio.sleep(0.1)
        assert sorted(case.started) == [0, 1]
        await case.fleet.restart_all("a publication lost it")
        await case.fleet.admit_all()
        assert (sorted(case.started), case.fleet.restarts) == ([0, 0, 1, 1], 2)
        assert [target.process.exit_code for target in case.fleet.targets] == [None, None]

    watched(tmp_path, monkeypatch, scenario)
