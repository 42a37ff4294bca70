"""The connections between the controller and its ranks: every rank says that it lives, rank 0 also takes commands and answers.

Samples go to the first rank of each data rank (shares.py), as raw bytes between the pickled messages.

A rank connects to the address in its environment, with the key in its environment. Messages to the controller are tuples:
("hello", rank), ("alive", rounds) every second from a thread of its own, ("failed", text) when an error ends it, and from rank 0
("update", update), ("done", value) or ("refused", text). A rank that stopped says nothing; one that waits for others in vain says
that it lives, but its rounds do not grow.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.processes.errors import EngineDied
from pipeline.processes.process import Process

ADDRESS, KEY = "MEGATRON_CONTROLLER", "MEGATRON_CONTROLLER_KEY"
_BEAT_S = 1.0
_POLL_S = 0.5
_SETTLE_S = 3.0  # when one rank dies, others follow; so long to find out which was first


@dataclass(frozen=True)
class Job:
    """What the controller tells every rank first. settings: a CellSettings as JSON.  base: a folder of Hugging Face weights."""

    settings: str
    base: str


@dataclass(frozen=True)
class Generating:
    """The version that generated a batch: the denominator `rollout_weights` computes log-probs with it."""

    version: int
    folder: str | None


class RankChannel:
    """A rank's end."""

    def __init__(self, rank: int) -> None:
        host, _, port = os.environ[ADDRESS].rpartition(":")
        self._connection = connection.Client((host, int(port)), authkey=bytes.fromhex(os.environ[KEY]))
        self._lock = threading.Lock()
        self._rounds = 0
        self.send("hello", rank)
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, kind: str, value: Any) -> None:
        with self._lock:
            self._connection.send((kind, value))

    def receive(self) -> Any:
        return self._connection.recv()

    def receive_into(self, space: NDArray[np.uint8]) -> None:
        """Fill `space` with one message of the controller's `send_bytes`. Raises ValueError where it is shorter."""
        size = self._connection.recv_bytes_into(space.data)
        if size != len(space):
            raise ValueError(f"a message of {size} bytes came, not of {len(space)}; controller and ranks must run the same code")

    def progress(self) -> None:
        """One more round is done."""
        self._rounds += 1

    def _beat(self) -> None:
        while True:
            time.sleep(_BEAT_S)
            try:
                self.send("alive", self._rounds)
            except OSError:  # the controller is gone, and its guard ends this process
                return


@dataclass
class _Peer:
    """The controller's view of a rank: when it was last heard, and when its rounds last grew."""

    process: Process
    connection: connection.Connection
    heard: float = field(default_factory=time.monotonic)
    rounds: int = -1
    grew: float = field(default_factory=time.monotonic)
    ended: float | None = None


class ControllerChannel:
    """The controller's end: sends to ranks, receives from rank 0, and raises EngineDied naming the rank that died or stalled."""

    def __init__(self, processes: Sequence[Process], listener: connection.Listener, startup_s: float, stall_s: float) -> None:
        self._stall_s = stall_s
        self._answers: deque[tuple[str, Any]] = deque()  # of rank 0, in order
        self._peers = _accept(processes, listener, time.monotonic() + startup_s)

    def send(self, message: Any, rank: int = 0) -> None:
        """Hand a rank a message, however large. Raises EngineDied, also where it is not taken within the stall timeout."""
        peer = self._peers[rank]
        self._watched(peer, lambda: peer.connection.send(message))

    def send_bytes(self, message: bytearray, rank: int) -> None:
        """As `send`, of bytes as they are, for a rank that is in `receive_into`."""
        peer = self._peers[rank]
        self._watched(peer, lambda: peer.connection.send_bytes(message))

    def send_to_all(self, message: Any) -> None:
        for rank in range(len(self._peers)):
            self.send(message, rank)

    def _watched(self, peer: _Peer, write: Callable[[], None]) -> None:
        """A rank that hangs takes nothing from a full pipe: a thread writes, while this one watches the ranks."""
        thread = threading.Thread(target=_write, args=(peer, write), daemon=True)
        thread.start()
        self._begin_watch()
        while thread.is_alive():
            thread.join(_POLL_S)
            for ready in self._ready(0.0):
                self._take(ready)
            self._check(self._stall_s, f" while {peer.process.spec.name} did not take a message")
        self._check(self._stall_s)

    def expect(self, patience_s: float | None = None) -> tuple[str, Any]:
        """The next message of rank 0, as (kind, value). Raises EngineDied. patience_s: in place of the stall timeout."""
        limit = self._stall_s if patience_s is None else patience_s
        self._begin_watch()
        while not self._answers:
            for peer in self._ready(_POLL_S):
                self._take(peer)
            if not self._answers:
                self._check(limit)
        return self._answers.popleft()

    def check(self) -> None:
        """Raise EngineDied where a rank has ended. One that waits for a command makes no progress, and need not."""
        while ready := self._ready(0.0):
            for peer in ready:
                self._take(peer)
        self._check_ended()

    def _begin_watch(self) -> None:
        started = time.monotonic()
        for peer in self._peers:
            peer.heard = peer.grew = started

    def _check(self, limit: float, circumstance: str = "") -> None:
        self._check_ended()
        self._check_stall(time.monotonic(), limit, circumstance)

    def _check_ended(self) -> None:
        if any(peer.ended is not None or peer.process.exit_code is not None for peer in self._peers):
            self._raise_death()

    def _ready(self, wait_s: float) -> list[_Peer]:
        open_peers = {peer.connection: peer for peer in self._peers if peer.ended is None}
        return [open_peers[ready] for ready in connection.wait(list(open_peers), wait_s)]  # pyright: ignore

    def _take(self, peer: _Peer) -> None:
        """Receive one message of a rank."""
        try:
            kind, value = peer.connection.recv()
        except (EOFError, OSError):
            peer.ended = time.monotonic()
            return
        peer.heard = time.monotonic()
        if kind == "alive":
            if value != peer.rounds:
                peer.rounds, peer.grew = value, peer.heard
        elif kind == "failed":
            peer.ended = peer.heard
        else:
            self._answers.append((kind, value))

    def _raise_death(self) -> None:
        """Name the ranks to blame: those that a signal ended, else those that failed first."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline and any(peer.process.exit_code is None for peer in self._peers):
            for peer in self._ready(_POLL_S):
                self._take(peer)
            time.sleep(0.05)
        signalled = [peer for peer in self._peers if (peer.process.exit_code or 0) >= 128]
        ended = sorted((peer for peer in self._peers if peer.ended is not None), key=lambda peer: peer.ended or 0.0)
        dead = [peer for peer in self._peers if peer.process.exit_code is not None]
        blamed = (signalled or ended or dead)[0]
        if blamed.process.exit_code is None:
            raise EngineDied(f"{blamed.process.spec.name} failed; the end of {blamed.process.log}:\n{blamed.process.tail()}")
        raise EngineDied(blamed.process.death())

    def _check_stall(self, now: float, limit: float, circumstance: str) -> None:
        silent = [peer for peer in self._peers if now - peer.heard > limit]
        stuck = [peer for peer in self._peers if now - peer.grew > limit]
        if not silent and len(stuck) < len(self._peers):
            return
        behind = min(peer.rounds for peer in self._peers)
        blamed = silent or [peer for peer in self._peers if peer.rounds == behind]
        names = ", ".join(peer.process.spec.name for peer in blamed)
        raise EngineDied(
            f"{names} made no progress for {limit:g} s{circumstance} (megatron.stall_timeout_s, while starting startup_timeout_s); "
            f"the end of {blamed[0].process.log}:\n{blamed[0].process.tail()}"
        )

    def close(self) -> None:
        for peer in self._peers:
            peer.connection.close()


def _write(peer: _Peer, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError:
        peer.ended = time.monotonic()


def _accept(processes: Sequence[Process], listener: connection.Listener, deadline: float) -> list[_Peer]:
    """The ranks in order, each connected. Raises EngineDied where one ends or none comes in time."""
    accepted: dict[int, connection.Connection] = {}
    given_up = threading.Event()
    thread = threading.Thread(target=_accept_all, args=(listener, len(processes), accepted, given_up), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL_S)
            for process in processes:
                process.check()
            if time.monotonic() > deadline:
                missing = [process for rank, process in enumerate(processes) if rank not in accepted]
                raise EngineDied(
                    f"{', '.join(process.spec.name for process in missing)} did not come up in time (megatron.startup_timeout_s); "
                    f"the end of {missing[0].log}:\n{missing[0].tail()}"
                )
    finally:
        given_up.set()
    return [_Peer(process, accepted[rank]) for rank, process in enumerate(processes)]


def _accept_all(
    listener: connection.Listener, count: int, accepted: dict[int, connection.Connection], given_up: threading.Event
) -> None:
    while len(accepted) < count and not given_up.is_set():
        try:
            peer = listener.accept()
            _, rank = peer.recv()
        except (multiprocessing.AuthenticationError, EOFError, OSError):  # a stranger, a rank that died, or a closed listener
            continue
        accepted[rank] = peer
