"""HTTP to one server, straight to the worker: SGLang's router drops `return_routed_experts` and knows no weight updates.

Bodies are built here by pure functions, so that tests can hold them against SGLang's own request classes. A generation that the
server refuses raises ValueError, a control request Refused; one that got no answer raises ServerLost, and what is safe to repeat is
repeated by the caller (a generation changes nothing in the server).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

import httpx

from pipeline.processes.errors import EngineDied
from pipeline.records import Request, SamplingKey
from pipeline.rollout.engine import SamplingSettings

T = TypeVar("T")
_CONNECT_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 20.0
_KEEP_IDLE_S = 2.0  # less than the 5 s after which the server closes an idle connection, perhaps just as it is used again
_CONTROL_CONNECTIONS = 4  # for probes and publications, beside those that generate
# what a server's scheduler reports after every batch that it runs: requests and tokens of the moment, and a count that only grows
LOAD = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "total_prefill_uncached_tokens")
_BODIES_AT_ONCE = 4  # of one server, read and decoded at a time: with routed experts one body can exceed 60 MB


class ServerLost(EngineDied):
    """The server did not answer: it ended, closed the connection, or is not ready."""


class Refused(EngineDied):
    """The server runs but did not do what a control request asked of it; what weights it holds now is unknown."""


def max_new_tokens(prompt_tokens: int, sampling: SamplingSettings) -> int:
    """The response's limit, the same in every engine: the cap, or what the context leaves beside the prompt and one token."""
    limit = min(sampling.max_response_tokens, sampling.context_length - prompt_tokens - 1)
    if limit < 1 or prompt_tokens < 1:
        raise ValueError(
            f"a prompt of {prompt_tokens} tokens leaves no room in rollout.context_length {sampling.context_length}; raise it"
        )
    return limit


def generate_body(request: Request, sampling: SamplingSettings, stop_token_ids: Sequence[int], vocab_size: int) -> dict[str, Any]:
    """The body of POST /generate. ValueError for an id outside the vocabulary, which would end the whole server.

    Every parameter that changes the sampled distribution is named, so that no generation_config.json can change it.
    """
    prompt = [int(token) for token in request.prompt_ids]
    if outside := [token for token in prompt if not 0 <= token < vocab_size]:
        raise ValueError(f"prompt token id {outside[0]} is outside the policy's vocabulary of {vocab_size}; check the tokenizer")
    return {
        "input_ids": prompt,
        "sampling_params": {
            "max_new_tokens": max_new_tokens(len(prompt), sampling),
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": list(stop_token_ids),
            "sampling_seed": sampling_seed(request.key),
        },
        "return_logprob": True,
        "return_routed_experts": sampling.return_routed_experts,
    }


def sampling_seed(key: SamplingKey) -> int:
    """63 bits that name this response. SGLang reads them only in its deterministic mode, where it would give all the same seed."""
    text = f"{key.seed}/{key.purpose}/{key.draw}/{key.problem}/{key.sample}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class ServerClient:
    """One server at `url`. in_flight: connections, one request each, that may be open at a time."""

    def __init__(self, url: str, key: str | None, in_flight: int, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.url = url
        self._reading = asyncio.Semaphore(_BODIES_AT_ONCE)
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=in_flight + _CONTROL_CONNECTIONS, keepalive_expiry=_KEEP_IDLE_S),
            trust_env=False,  # a proxy of the environment has no business between the cell and its servers
            transport=transport,
        )

    async def generate(self, body: Mapping[str, Any], decode: Callable[[bytes], T], pool: Executor) -> T:
        """The answer's bytes, decoded in `pool`, a few answers at a time.

        The wait has no limit of its own: the fleet ends a server that answers nothing for too long.
        """
        try:
            async with self._http.stream("POST", "/generate", json=body) as response, self._reading:
                content = await response.aread()
                if response.status_code == httpx.codes.OK:
                    return await asyncio.get_running_loop().run_in_executor(pool, decode, content)
        except httpx.TransportError as error:
            raise ServerLost(f"{self.url} gave no answer ({type(error).__name__}: {error})") from error
        raise _refusal(response.status_code, content, f"{self.url}/generate", ValueError)

    async def control(self, path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """POST to an endpoint that answers {"success": ..., "message": ...} and more."""
        answer = await self._ask("POST", path, timeout_s, body)
        if not answer.get("success"):
            raise Refused(f"{self.url}{path} failed: {answer.get('message')}")
        return answer

    async def weight_version(self) -> str:
        return (await self._ask("GET", "/model_info", _PROBE_TIMEOUT_S))["weight_version"]

    async def load(self) -> tuple[int, ...] | None:
        """LOAD's values, of which one at least changes while the server generates; None where it does not tell them."""
        try:
            answer = await self._ask("GET", "/v1/loads?include=core", _PROBE_TIMEOUT_S)
        except EngineDied:
            return None
        return tuple(scheduler[name] for scheduler in answer["loads"] for name in LOAD)

    async def _ask(self, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, json=body, timeout=timeout_s)
        except httpx.TransportError as error:
            raise ServerLost(f"{self.url}{path} gave no answer ({type(error).__name__}: {error})") from error
        if response.status_code != httpx.codes.OK:
            raise _refusal(response.status_code, response.content, f"{self.url}{path}", Refused)
        return response.json()

    async def healthy(self) -> bool:
        """Whether the server generates: its health check samples a token, or sees that others are being sampled."""
        try:
            return (await self._http.get("/health", timeout=_PROBE_TIMEOUT_S)).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    async def close(self) -> None:
        await self._http.aclose()


def _refusal(status: int, content: bytes, what: str, refused: type[Exception]) -> Exception:
    """What another status than 200 means: the request is `refused`, or the server is not in order."""
    message = content[:2000].decode(errors="replace")
    if httpx.codes.is_client_error(status):
        return refused(f"{what} refused the request (HTTP {status}): {message}")
    return ServerLost(f"{what} answered HTTP {status}: {message}")
