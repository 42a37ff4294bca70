"""Decoding of a server's answers with routed experts, beside the usual way of doing it, side by side in one run.

    PYTHONPATH=. python -m benchmarks.routed_experts                      # one response of 32k tokens; 1,024 of 2k tokens
    PYTHONPATH=. python -m benchmarks.routed_experts --responses 4096     # needs 3.3 GB for the experts of all responses

The model is that of the preset full: 48 layers, 8 of 128 experts, so 1.5 kB of int32 per token. `ours` is the engine's decoder;
`usual` parses the JSON, decodes its base64 and casts the int32 to uint8. Both run in a pool of threads like the engine's and keep
every response. GB/s counts the bytes of the int32 that the server sent; memory is what the process needed at its peak beyond the
answer's own text, each measurement in a process of its own. Linux alone tells that.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.config import load_settings
from pipeline.records import Request, Response, SamplingKey
from pipeline.rollout.sglang.decode import Expected, decode_response
from pipeline.sections import ModelSettings

PROMPT_TOKENS = 200


def answer(tokens: int, model: ModelSettings) -> bytes:
    """What a server says about a response of `tokens` tokens."""
    generator = np.random.default_rng(0)
    shape = (PROMPT_TOKENS + tokens - 1, model.num_layers, model.num_experts_per_token)
    ids = generator.integers(0, model.num_experts, shape, dtype=np.int32)
    sampled = generator.integers(0, model.vocab_size, tokens).tolist()
    logprobs = np.log(generator.random(tokens, dtype=np.float32)).tolist()
    meta = {
        "finish_reason": {"type": "length", "length": tokens},
        "output_token_logprobs": [[value, token, None] for value, token in zip(logprobs, sampled, strict=True)],
        "weight_versions": [{"version": "8", "start": 0, "end": tokens}],
        "routed_experts": base64.b64encode(ids.tobytes()).decode(),
    }
    return json.dumps({"output_ids": sampled, "meta_info": meta}, separators=(",", ":")).encode()


def usual(body: bytes, request: Request, model: ModelSettings) -> Response:
    parsed = json.loads(body)
    meta, ids = parsed["meta_info"], np.array(parsed["output_ids"], dtype=np.int32)
    experts = np.frombuffer(base64.b64decode(meta["routed_experts"]), dtype=np.int32)
    return Response(
        request.prompt_ids,
        ids,
        np.array([entry[0] for entry in meta["output_token_logprobs"]], dtype=np.float32),
        np.full(len(ids), int(meta["weight_versions"][0]["version"]), dtype=np.int32),
        experts.reshape(-1, model.num_layers, model.num_experts_per_token).astype(np.uint8),
        meta["finish_reason"]["type"],
    )


def peak_bytes() -> int:
    """The most memory that this process has held since the peak was forgotten."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def measure(way: str, responses: int, tokens: int, threads: int) -> tuple[float, float]:
    """Seconds to decode all responses, and gigabytes at the peak beyond the one answer that all of them share."""
    model = load_settings(overrides={"preset": "full"}).model
    request = Request(np.zeros(PROMPT_TOKENS, dtype=np.int32), SamplingKey(0, "train", 0, 0, 0))
    decoders: dict[str, Callable[[bytes], Response]] = {
        "ours": partial(decode_response, request=request, expected=Expected(8, model, routed_experts=True)),
        "usual": partial(usual, request=request, model=model),
    }
    body = answer(tokens, model)
    decode = decoders[way]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(decode, [answer(8, model)] * threads))  # imports and tables
        forget_peak()
        before, started = peak_bytes(), time.perf_counter()
        kept = list(pool.map(decode, [body] * responses))
        seconds = time.perf_counter() - started
    assert len(kept) == responses
    return seconds, (peak_bytes() - before) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=1024, help="of 2k tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    model = load_settings(overrides={"preset": "full"}).model
    spawn = multiprocessing.get_context("spawn")
    print(f"{options.threads} threads, median of {options.rounds} rounds")
    for responses, tokens in ((1, 32768), (options.responses, 2048)):
        size = responses * (PROMPT_TOKENS + tokens - 1) * model.num_layers * model.num_experts_per_token * 4 / 1e9
        found: dict[str, list[tuple[float, float]]] = {"ours": [], "usual": []}
        for _ in range(options.rounds):
            for way, figures in found.items():
                with spawn.Pool(1) as pool:
                    figures.append(pool.apply(measure, (way, responses, tokens, options.threads)))
        print(f"{responses} x {tokens} tokens: {size:.2f} GB of int32, {size / 4:.2f} GB as uint8")
        for way, figures in found.items():
            seconds, memory = (statistics.median(column) for column in zip(*figures, strict=True))
            print(f"  {way:6s}{seconds:8.2f} s {size / seconds:7.2f} GB/s   peak {memory:5.2f} GB")
        ratios = sorted(b[0] / a[0] for a, b in zip(found["ours"], found["usual"], strict=True))
        print(f"  usual / ours: {statistics.median(ratios):.1f}x ({ratios[0]:.1f} to {ratios[-1]:.1f} over rounds)")


if __name__ == "__main__":
    main()
