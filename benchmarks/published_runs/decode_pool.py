"""Rollout servers as a discrete-event model: responses of known length, slots per server, and a decode step whose time depends on
how many responses share it and how long their contexts are.

All responses of a server advance one token per decode step, so a server is a token clock: a response that enters at position p with
length L leaves at position p + L. Between two events the step time is taken at the mean context of the interval.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

StepTime = Callable[[float, float], float]  # (responses, tokens of all their contexts) -> seconds of one decode step


@dataclass
class _Server:
    """One server. position: tokens decoded so far; time: when that was; leaving: heap of (leaving position, context at entry)."""

    time: float = 0.0
    position: float = 0.0
    context: float = 0.0
    leaving: list[tuple[float, float]] = field(default_factory=list)
    busy_s: float = 0.0


class DecodePool:
    """Servers that share one queue of requests, first come, first served.

    `submit` adds requests at the present; `next_time` says when the next response ends; `complete_next` lets it end. Times are
    seconds; `now` only moves forward.
    """

    def __init__(self, num_servers: int, slots: int, step_time: StepTime, prompt_tokens: float) -> None:
        if num_servers < 1 or slots < 1:
            raise ValueError(f"{num_servers} servers of {slots} slots: give at least one of each")
        self.servers = [_Server() for _ in range(num_servers)]
        self.slots, self.step_time, self.prompt_tokens = slots, step_time, prompt_tokens
        self.queue: deque[float] = deque()
        self.now = 0.0
        self.tokens = 0.0
        self.in_system = 0  # responses that are being decoded or wait
        self._events: list[tuple[float, int]] = []
        self._stale: set[tuple[float, int]] = set()
        self._scheduled: list[tuple[float, int] | None] = [None] * num_servers

    def busy_s(self) -> float:
        """Server-seconds with at least one response, up to now."""
        return sum(server.busy_s for server in self.servers)

    def submit(self, lengths: Iterable[float]) -> None:
        """Queue responses of these lengths and let idle slots take them, the emptiest server first."""
        before = len(self.queue)
        self.queue.extend(lengths)
        self.in_system += len(self.queue) - before
        room = [(len(server.leaving), number) for number, server in enumerate(self.servers) if len(server.leaving) < self.slots]
        heapq.heapify(room)
        touched: dict[int, list[float]] = {}
        while self.queue and room:
            count, number = heapq.heappop(room)
            touched.setdefault(number, []).append(self.queue.popleft())
            if count + 1 < self.slots:
                heapq.heappush(room, (count + 1, number))
        for number, entering in touched.items():
            self._advance(number)
            self._enter(number, entering)

    def next_time(self) -> float:
        """When the next response ends; infinity where nothing is being decoded."""
        while self._events and self._events[0] in self._stale:
            self._stale.discard(heapq.heappop(self._events))
        return self._events[0][0] if self._events else math.inf

    def complete_next(self) -> None:
        """Move to the end of the next response; its slot takes the next request of the queue."""
        time = self.next_time()
        assert time < math.inf, "nothing is being decoded"
        number = heapq.heappop(self._events)[1]
        self._scheduled[number] = None
        self.now = time
        server = self.servers[number]
        self._advance(number)
        leaving, context = heapq.heappop(server.leaving)
        server.position = leaving
        server.context -= context + leaving
        self.tokens += leaving + context - self.prompt_tokens
        self.in_system -= 1
        self._enter(number, [self.queue.popleft()] if self.queue else [])

    def wait_until(self, time: float) -> None:
        """Move the present to `time`, which no event may precede."""
        assert time <= self.next_time() + 1e-9
        self.now = max(self.now, time)

    def pause(self, seconds: float) -> None:
        """Stop all servers for `seconds`: they load new weights, and go on with what they were decoding."""
        for number, server in enumerate(self.servers):
            self._advance(number)
            server.time += seconds
            self._schedule(number)

    def _advance(self, number: int) -> None:
        """Bring a server's token clock to the present."""
        server = self.servers[number]
        elapsed = self.now - server.time
        if elapsed <= 0:
            return
        if server.leaving:
            tokens = elapsed / self._mean_step_s(server)
            server.position += tokens
            server.context += len(server.leaving) * tokens
            server.busy_s += elapsed
        server.time = self.now

    def _mean_step_s(self, server: _Server) -> float:
        """Seconds a token until the next response leaves."""
        count = len(server.leaving)
        return self.step_time(count, server.context + count * (server.leaving[0][0] - server.position) / 2)

    def _enter(self, number: int, lengths: list[float]) -> None:
        server = self.servers[number]
        for length in lengths:
            # context at entry less the position: adding the leaving position gives the context it leaves with
            heapq.heappush(server.leaving, (server.position + length, self.prompt_tokens - server.position))
            server.context += self.prompt_tokens
        self._schedule(number)

    def _schedule(self, number: int) -> None:
        server = self.servers[number]
        if (before := self._scheduled[number]) is not None:
            self._stale.add(before)
            self._scheduled[number] = None
        if server.leaving:
            event = (server.time + max(server.leaving[0][0] - server.position, 0.0) * self._mean_step_s(server), number)
            heapq.heappush(self._events, event)
            self._scheduled[number] = event
