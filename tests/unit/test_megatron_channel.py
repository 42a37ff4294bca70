"""The controller notices ranks that die, fall silent or get stuck, and names them. Here ranks are threads, processes records."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path

import numpy as np
import pytest

from pipeline.processes.errors import EngineDied
from pipeline.processes.process import ProcessSpec
from pipeline.records import Response, RolloutBatch, Sample
from pipeline.rollout import engine
from pipeline.rollout.engine import Generation, awaited
from pipeline.trainer.megatron import channel
from pipeline.trainer.megatron.channel import ADDRESS, KEY, ControllerChannel, RankChannel
from pipeline.trainer.megatron.parcel import Arrival
from pipeline.trainer.megatron.shares import hand_out

STALL_S = 1.5  # long beside what a busy machine may keep a thread waiting


@dataclass
class FakeProcess:
    spec: ProcessSpec
    exit_code: int | None = None
    log: Path = field(default_factory=lambda: Path("rank.log"))

    def check(self) -> None:
        if self.exit_code is not None:
            raise EngineDied(self.death())

    def death(self) -> str:
        return f"{self.spec.name} ended with exit code {self.exit_code}"

    def tail(self) -> str:
        return "  | its last words"


@dataclass
class Pair:
    processes: list[FakeProcess]
    ranks: list[RankChannel]
    controller: ControllerChannel


@pytest.fixture
def listener(monkeypatch) -> Iterator[connection.Listener]:
    for name, seconds in (("_BEAT_S", 0.02), ("_POLL_S", 0.02), ("_SETTLE_S", 0.2)):
        monkeypatch.setattr(channel, name, seconds)
    with connection.Listener(("127.0.0.1", 0), authkey=b"secret") as listener:
        monkeypatch.setenv(ADDRESS, f"127.0.0.1:{listener.address[1]}")
        monkeypatch.setenv(KEY, b"secret".hex())
        yield listener


def processes(count: int = 2) -> list[FakeProcess]:
    return [FakeProcess(ProcessSpec(f"rank-{rank}", ("rank",))) for rank in range(count)]


@pytest.fixture
def pair(listener) -> Pair:
    made, ranks = processes(), dict[int, RankChannel]()
    threads = [threading.Thread(target=lambda rank=rank: ranks.update({rank: RankChannel(rank)})) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    controller = ControllerChannel(made, listener, 10.0, STALL_S)  # pyright: ignore[reportArgumentType]
    for thread in threads:
        thread.join()
    return Pair(made, [ranks[0], ranks[1]], controller)


def test_messages_pass_both_ways_between_beats(pair: Pair) -> None:
    pair.controller.send(("train", {}))
    assert pair.ranks[0].receive() == ("train", {})
    pair.ranks[0].send("row", {"loss": 1.0})
    assert pair.controller.expect() == ("row", {"loss": 1.0})


def test_a_killed_rank_is_named_though_another_fails_after_it(pair: Pair) -> None:
    pair.ranks[0].send("failed", "connection reset by peer")
    pair.ranks[0]._connection.close()
    pair.processes[0].exit_code = 1
    pair.ranks[1]._connection.close()
    pair.processes[1].exit_code = 137
    started = time.monotonic()
    with pytest.raises(EngineDied, match="rank-1 ended with exit code 137"):
        pair.controller.expect()
    assert time.monotonic() - started < 2.0


def test_the_first_of_two_failed_ranks_is_named(pair: Pair) -> None:
    pair.ranks[1]._connection.close()
    pair.processes[1].exit_code = 1
    with pytest.raises(EngineDied, match="rank-1 ended with exit code 1"):
        pair.controller.expect()


def test_a_silent_rank_is_named(pair: Pair, monkeypatch) -> None:
    monkeypatch.setattr(pair.ranks[1], "send", lambda *_: None)
    working = threading.Thread(target=work, args=(pair.ranks[0],), daemon=True)
    working.start()
    with pytest.raises(EngineDied, match=r"^rank-1 made no progress for 1\.5 s"):
        pair.controller.expect()


def test_the_rank_that_others_wait_for_is_named(pair: Pair) -> None:
    pair.ranks[0].progress()
    with pytest.raises(EngineDied, match=r"^rank-1 made no progress for 1\.5 s(.|\n)*its last words"):
        pair.controller.expect()


def test_a_rank_that_takes_nothing_is_named_and_a_slow_one_gets_all(pair: Pair) -> None:
    large = bytes(100 << 20)  # more than a socket's buffers grow to
    received: list[object] = []
    reader = threading.Thread(target=lambda: (time.sleep(STALL_S / 8), received.append(pair.ranks[0].receive())))
    reader.start()
    pair.controller.send(large)
    reader.join()
    assert len(received) == 1 and received[0] == large
    started = time.monotonic()
    with pytest.raises(EngineDied, match=r"^rank-0, rank-1 made no progress for 1\.5 s"):
        pair.controller.send(large)
    assert time.monotonic() - started < 10 * STALL_S


def test_the_rank_that_does_not_take_its_samples_is_named(pair: Pair) -> None:
    threading.Thread(target=taken, args=(pair.ranks[0],), daemon=True).start()
    with pytest.raises(EngineDied, match=r"made no progress for 1\.5 s while rank-1 did not take a message"):
        hand_out(pair.controller, (0, 1), large_batch(), 1, 10_000, 1 << 20)


def test_a_rank_that_dies_while_it_takes_samples_is_named(pair: Pair) -> None:
    def die() -> None:
        arrival = Arrival.of(pair.ranks[1].receive())
        pair.ranks[1].receive_into(next(arrival.messages()))
        pair.ranks[1]._connection.close()
        pair.processes[1].exit_code = 137

    threading.Thread(target=taken, args=(pair.ranks[0],), daemon=True).start()
    threading.Thread(target=die, daemon=True).start()
    with pytest.raises(EngineDied, match="rank-1 ended with exit code 137"):
        hand_out(pair.controller, (0, 1), large_batch(), 1, 10_000, 1 << 20)


def test_a_message_of_another_length_than_expected_is_refused(pair: Pair) -> None:
    pair.controller.send_bytes(bytearray(b"abc"), 1)
    with pytest.raises(ValueError, match="a message of 3 bytes came, not of 4"):
        pair.ranks[1].receive_into(np.zeros(4, dtype=np.uint8))


def test_an_answer_that_comes_during_a_send_is_kept(pair: Pair) -> None:
    pair.ranks[0].send("done", 1)
    pair.controller.send("next")
    assert pair.controller.expect() == ("done", 1)


def test_a_rank_that_dies_while_nothing_is_asked_of_it_ends_the_wait_for_rollouts(pair: Pair, monkeypatch) -> None:
    """Its beats lie unread meanwhile, and ranks that wait for a command are not stuck however long that takes."""
    monkeypatch.setattr(engine, "_CHECK_S", 0.05)
    rollouts: Future[Generation] = Future()
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 2 * STALL_S and pair.processes[1].exit_code is None:
            pair.ranks[1]._connection.close()
            pair.processes[1].exit_code = 137
        pair.controller.check()

    with pytest.raises(EngineDied, match="rank-1 ended with exit code 137"):
        awaited(rollouts, check)
    assert 2 * STALL_S < time.monotonic() - began < 2 * STALL_S + 5.0


def test_rollouts_that_come_are_handed_on_and_their_failure_is_raised(pair: Pair) -> None:
    done, failed = Future[Generation](), Future[Generation]()
    done.set_result(Generation((), 1.0))
    failed.set_exception(TimeoutError("the engine's own"))
    assert awaited(done, pair.controller.check).seconds == 1.0
    with pytest.raises(TimeoutError, match="the engine's own"):
        awaited(failed, pair.controller.check)
    pair.ranks[0].send("done", 3)
    pair.controller.check()
    assert pair.controller.expect() == ("done", 3)


def test_a_slow_but_working_rank_is_waited_for(pair: Pair) -> None:
    threading.Thread(target=work, args=(pair.ranks[1],), daemon=True).start()
    threading.Timer(3 * STALL_S, pair.ranks[0].send, ("done", 5)).start()
    assert pair.controller.expect() == ("done", 5)


def test_a_rank_that_never_comes_up_and_one_that_dies_first_are_named(listener) -> None:
    with pytest.raises(EngineDied, match="rank-0, rank-1 did not come up in time"):
        ControllerChannel(processes(), listener, 0.1, STALL_S)  # pyright: ignore[reportArgumentType]
    dying = processes()
    dying[1].exit_code = 2
    with pytest.raises(EngineDied, match="rank-1 ended with exit code 2"):
        ControllerChannel(dying, listener, 10.0, STALL_S)  # pyright: ignore[reportArgumentType]


def test_strangers_on_the_port_do_not_keep_a_rank_away(listener) -> None:
    address = ("127.0.0.1", listener.address[1])
    socket.create_connection(address).close()
    with socket.create_connection(address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    threading.Thread(target=RankChannel, args=(0,), daemon=True).start()
    controller = ControllerChannel(processes(1), listener, 10.0, STALL_S)  # pyright: ignore[reportArgumentType]
    controller.close()


def work(rank: RankChannel) -> None:
    for _ in range(200):
        rank.progress()
        time.sleep(STALL_S / 10)


def taken(rank: RankChannel) -> None:
    """Take what `hand_out` sends to one rank, until the controller is gone."""
    arrival = Arrival.of(rank.receive())
    with contextlib.suppress(EOFError, OSError):
        for message in arrival.messages():
            rank.receive_into(message)


def large_batch() -> RolloutBatch:
    """Two samples whose routes, 100 MB each, are more than a socket's buffers grow to."""
    ids, routes = np.zeros(9_999, dtype=np.int32), np.zeros((9_999, 2_500, 4), dtype=np.uint8)
    response = Response(ids[:1], ids, np.zeros(9_999, dtype=np.float32), ids, routes, "stop")
    return RolloutBatch(0, (Sample("a", response, "correct", 1.0, 1.0), Sample("b", response, "correct", 1.0, 1.0)), 2, 0.0)
