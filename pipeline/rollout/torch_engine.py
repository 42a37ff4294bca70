"""The `torch` rollout engine: a TorchDecoder, in a process of its own driven through a pipe, or in the caller's process.

A process of its own carries out loads and generations in the order of the calls (the contract of rollout/engine.py), while the
caller trains. A reader thread turns answers into futures. The child ends when its pipe closes, so that it never outlives the
trainer. If the child ends first, every outstanding future raises EngineDied.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection

import safetensors.torch
import torch

from pipeline.policy.cpu import configure_cpu
from pipeline.processes.errors import EngineDied
from pipeline.published_weights import PublishedWeights
from pipeline.records import Request
from pipeline.rollout.engine import Generation, SamplingSettings
from pipeline.rollout.torch_decoder import TorchDecoder
from pipeline.sections import ModelSettings


@dataclass(frozen=True)
class EngineSpec:
    """What the child needs to build its decoder."""

    model: ModelSettings
    dtype: str
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    threads: int = 1


def build_decoder(spec: EngineSpec) -> TorchDecoder:
    return TorchDecoder(spec.model, getattr(torch, spec.dtype), spec.stop_token_ids, spec.pad_token_id)


class InlineTorchEngine:
    """RolloutEngine without overlap: every call is carried out before it returns. Its responses are those of TorchRolloutEngine."""

    def __init__(self, spec: EngineSpec) -> None:
        self._decoder = build_decoder(spec)

    def load(self, published: PublishedWeights) -> None:
        self._decoder.load(published.version, published.weights)

    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> Future[Generation]:
        future: Future[Generation] = Future()
        started = time.perf_counter()
        responses = tuple(self._decoder.generate(requests, sampling))
        future.set_result(Generation(responses, time.perf_counter() - started))
        return future

    def close(self) -> None:
        pass


class TorchRolloutEngine:
    """RolloutEngine that generates in a process of its own while the caller trains."""

    def __init__(self, spec: EngineSpec) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, spec), name="rollout-engine", daemon=True)
        self._process.start()
        child_end.close()
        self._outstanding: dict[int, Future[Generation]] = {}
        self._next_call = 0
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="rollout-engine-reader", daemon=True)
        self._reader.start()

    def load(self, published: PublishedWeights) -> None:
        self._send(("load", published.version, safetensors.torch.save(dict(published.weights))))

    def generate(self, requests: Sequence[Request], sampling: SamplingSettings) -> Future[Generation]:
        future: Future[Generation] = Future()
        with self._lock:
            call, self._next_call = self._next_call, self._next_call + 1
            self._outstanding[call] = future
        self._send(("generate", call, tuple(requests), sampling))
        return future

    def close(self) -> None:
        """End the child after what it was asked for; its end of the pipe closes with it, and that ends the reader."""
        with contextlib.suppress(OSError):
            self._connection.send(("close",))
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._reader.join()
        self._connection.close()

    def _send(self, message: tuple) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._death() from error

    def _read(self) -> None:
        while True:
            try:
                call, answer = self._connection.recv()
            except (EOFError, OSError):
                break
            with self._lock:
                future = self._outstanding.pop(call)
            if isinstance(answer, Generation):
                future.set_result(answer)
            else:
                future.set_exception(ValueError(answer))
        with self._lock:
            abandoned, self._outstanding = self._outstanding, {}
        for future in abandoned.values():
            future.set_exception(self._death())

    def _death(self) -> EngineDied:
        self._process.join(timeout=1)
        return EngineDied(
            f"the rollout engine process ended with exit code {self._process.exitcode} while work was outstanding; "
            "start the same command again: the cell resumes from its last checkpoint"
        )


def _serve(connection: Connection, spec: EngineSpec) -> None:
    """The child's life: obey messages in order until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the trainer closes the pipe
    configure_cpu(spec.threads)
    decoder, refused = build_decoder(spec), ""
    try:
        while True:
            kind, *content = connection.recv()
            if kind == "close":
                return
            if kind == "load":
                version, weights = content
                try:
                    decoder.load(version, safetensors.torch.load(weights))
                except ValueError as error:  # a load has no answer of its own; the generations that follow carry the reason
                    refused = str(error)
            else:
                call, requests, sampling = content
                connection.send((call, refused or _generate(decoder, requests, sampling)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the trainer has closed the engine, or has died


def _generate(decoder: TorchDecoder, requests: Sequence[Request], sampling: SamplingSettings) -> Generation | str:
    started = time.perf_counter()
    try:
        responses = decoder.generate(requests, sampling)
    except ValueError as error:  # a request that cannot be served is the caller's error, not the engine's death
        return str(error)
    return Generation(tuple(responses), time.perf_counter() - started)
