"""One answer of a server, as bytes, -> a Response. Pure functions that run outside the event loop.

The answer is JSON whose bulk, with routing replay, is one base64 string: int32 expert ids [prompt + response - 1, layers, k],
little endian. That string is cut out before the JSON is parsed and never becomes int32: expert ids fit a byte, so of every 16
base64 characters (3 ids) only six can differ from "A", and those are looked up. Everything the loss relies on is checked:
lengths, ids, the version of every token. An answer that must not be used raises Unusable and is generated again.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.records import FinishReason, Request, Response
from pipeline.sections import ModelSettings

_ROUTES = re.compile(rb'"routed_experts"\s*:\s*"')
_CHUNK = 1 << 18  # base64 characters decoded at a time: the lookups stay in the cache
_BLOCK = 16  # base64 characters of three int32


class Unusable(RuntimeError):
    """This answer must not be trained on - aborted, from other weights, incomplete; the message says why. Generate again."""


@dataclass(frozen=True)
class Expected:
    """What an answer has to agree with: the version that was loaded, the model, and whether experts were asked for."""

    version: int
    model: ModelSettings
    routed_experts: bool


def decode_response(body: bytes, request: Request, expected: Expected) -> Response:
    """The Response in `body`. Raises Unusable for one that has to be generated again."""
    try:
        body, routes = _cut_routes(body)
        answer = json.loads(body)
        meta, ids = answer["meta_info"], np.array(answer["output_ids"], dtype=np.int32)
        finish_reason = _finish_reason(meta["finish_reason"])
        logprobs = meta["output_token_logprobs"]
        versions = _versions(meta["weight_versions"], len(ids))
    except (ValueError, KeyError, TypeError) as error:
        raise Unusable(f"the server's answer lacks what was asked for ({type(error).__name__}: {error})") from error
    if versions.size == 0 or (versions != expected.version).any():
        found = sorted(set(versions.tolist()))
        raise Unusable(f"tokens were sampled from versions {found} while version {expected.version} was asked for")
    if [entry[1] for entry in logprobs] != ids.tolist():
        raise Unusable(f"{len(logprobs)} log-probs do not belong to the {len(ids)} sampled tokens")
    values = np.array([entry[0] for entry in logprobs], dtype=np.float32)
    if not np.isfinite(values).all():
        raise Unusable("a log-prob is not finite")
    experts = None
    if expected.routed_experts:
        if routes is None:
            raise Unusable("routed experts were asked for and none came back")
        experts = _experts(routes, len(request.prompt_ids) + len(ids) - 1, expected.model)
    return Response(request.prompt_ids, ids, values, versions, experts, finish_reason)


def _cut_routes(body: bytes) -> tuple[bytes, memoryview | None]:
    """The answer with an empty string in place of the routed experts, and their base64 text."""
    found = _ROUTES.search(body)
    if found is None:
        return body, None
    end = body.index(b'"', found.end())
    view = memoryview(body)
    return b"".join((view[: found.end()], view[end:])), view[found.end() : end]


def _finish_reason(reason: dict[str, Any]) -> FinishReason:
    if reason["type"] == "abort":
        raise Unusable(f"the server aborted the response: {reason.get('message')}")
    if reason["type"] not in ("stop", "length"):
        raise Unusable(f"unknown finish reason {reason['type']!r}")
    return reason["type"]


def _versions(spans: Sequence[dict[str, Any]], tokens: int) -> NDArray[np.int32]:
    """int32 [tokens] from the server's spans, which have to cover every token once and in order."""
    versions = np.empty(tokens, dtype=np.int32)
    reached = 0
    for span in spans:
        if span["start"] != reached or not str(span["version"]).isdecimal():
            raise Unusable(f"version {span['version']!r} for tokens {span['start']} to {span['end']}")
        reached = span["end"]
        versions[span["start"] : reached] = int(span["version"])
    if reached != tokens:
        raise Unusable(f"the versions cover {reached} of {tokens} tokens")
    return versions


def _experts(text: memoryview, rows: int, model: ModelSettings) -> NDArray[np.uint8]:
    """uint8 [rows, layers, k]; every layer has experts (server.sections refuses dense ones)."""
    shape = (rows, model.num_layers, model.num_experts_per_token)
    try:
        experts = experts_from_base64(text, int(np.prod(shape))).reshape(shape)
    except ValueError as error:
        raise Unusable(f"routed experts of {rows} tokens: {error}") from error
    if experts.size and experts.max() >= model.num_experts:
        raise Unusable(f"expert id {experts.max()} of a policy with {model.num_experts} experts")
    return experts


def experts_from_base64(text: bytes | memoryview, count: int) -> NDArray[np.uint8]:
    """uint8 [count] from the base64 text of `count` little-endian int32, each in 0..255. ValueError for anything else."""
    if len(text) != -(-count * 4 // 3) * 4:
        raise ValueError(f"{len(text)} base64 characters are not {count} int32")
    whole = count // 3
    ids = np.empty(count, dtype=np.uint8)
    blocks = np.frombuffer(text, dtype=np.uint8, count=whole * _BLOCK).reshape(whole, _BLOCK)
    triples = ids[: whole * 3].reshape(whole, 3)
    step = _CHUNK // _BLOCK
    for first in range(0, whole, step):
        _decode_blocks(blocks[first : first + step], triples[first : first + step])
    try:
        rest = np.frombuffer(binascii.a2b_base64(text[whole * _BLOCK :], strict_mode=True), dtype="<i4")
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    if ((rest < 0) | (rest > 255)).any():
        raise ValueError("an expert id is not in 0..255")
    ids[whole * 3 :] = rest
    return ids


# The 12 bytes of three int32 in 0..255 are zero but for bytes 0, 4 and 8, which straddle characters 0|1, 5|6 and 10|11 of the
# block. A table maps such a pair of characters to its byte, and to _WRONG where a bit beside the byte's eight is not zero.
_WRONG = 0x100
_PAIRS = (0, 5, 10)
_FIXED = np.array([0 if i in (0, 1, 5, 6, 10, 11) else 0xFF for i in range(_BLOCK)], dtype=np.uint8).view(np.uint64)
_ZEROS = np.frombuffer(b"A" * _BLOCK, dtype=np.uint8).view(np.uint64)
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _pair_table(spare_bits: int) -> NDArray[np.uint16]:
    """uint16 [65536], indexed by a little-endian pair of characters: the byte whose last bit has `spare_bits` after it."""
    table = np.full(1 << 16, _WRONG, dtype=np.uint16)
    for byte in range(256):
        bits = byte << spare_bits
        table[_ALPHABET[bits >> 6] | _ALPHABET[bits & 0x3F] << 8] = byte
    return table


_TABLES = tuple(_pair_table(spare_bits) for spare_bits in (4, 2, 0))


def _decode_blocks(blocks: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """uint8 [n, 16] characters -> [n, 3] ids."""
    words = blocks.view(np.uint64)
    wrong = any(np.bitwise_or.reduce(words[:, i] ^ _ZEROS[i]) & _FIXED[i] for i in range(2))
    for byte, (first, table) in enumerate(zip(_PAIRS, _TABLES, strict=True)):
        pairs = np.ndarray(len(blocks), dtype="<u2", buffer=blocks, offset=first, strides=(_BLOCK,))
        ids = table.take(pairs)
        wrong |= (ids >= _WRONG).any()
        out[:, byte] = ids
    if wrong:
        raise ValueError("an expert id is not in 0..255, or the text is not base64")
