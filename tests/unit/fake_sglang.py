"""A stand-in for one SGLang server, by the standard library alone: python fake_sglang.py PORT FOLDER VOCABULARY LAYERS EXPERTS K

Its answers follow from the prompt. The prompt's first token may ask for trouble (TROUBLE below), which happens once per FOLDER,
however often the server is started again - or always, where its name begins with "always". FOLDER/log.jsonl records what was asked,
in order.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TROUBLE = {
    40: "die",
    41: "hang",
    42: "other_version",
    43: "abort",
    44: "unavailable",
    45: "always_refused",
    46: "no_routes",
    47: "slow",
    48: "always_abort",
    49: "two_versions",
    50: "lost_logprob",
    51: "always_long",
}
DIE_LOADING = {"13": "die_once", "14": "always"}  # versions
REFUSE_LOADING = {"15": "refuse_once", "16": "always", "17": "fail_once"}  # by a status, or by the answer's content
LONG_S = 2  # an answer that takes so long, while its tokens grow in number
LIMIT = 6  # a response longer than this ends by length


def answer(prompt: list[int], version: str, sizes: tuple[int, ...], limit: int, routes: bool) -> dict[str, Any]:
    """Response i of a prompt is (sum + i) modulo the vocabulary, its log-prob minus its id / 64."""
    vocabulary, layers, experts, k = sizes
    count = min(limit, 1 + sum(prompt) % LIMIT)
    ids = [(sum(prompt) + index) % vocabulary for index in range(count)]
    meta: dict[str, Any] = {
        "finish_reason": {"type": "length", "length": count} if count == limit else {"type": "stop", "matched": ids[-1]},
        "output_token_logprobs": [[-token / 64, token, None] for token in ids],
        "weight_versions": [{"version": version, "start": 0, "end": count}],
    }
    if routes:
        rows = len(prompt) + count - 1
        values = [(row + layer + choice) % experts for row in range(rows) for layer in range(layers) for choice in range(k)]
        meta["routed_experts"] = base64.b64encode(struct.pack(f"<{len(values)}i", *values)).decode()
    return {"output_ids": ids, "meta_info": meta}


def spoil(trouble: str, reply: dict[str, Any]) -> None:
    meta, count = reply["meta_info"], len(reply["output_ids"])
    if trouble == "other_version":
        meta["weight_versions"][0]["version"] = "999"
    elif trouble == "two_versions" and count > 1:
        version = meta["weight_versions"][0]["version"]
        meta["weight_versions"] = [{"version": "999", "start": 0, "end": 1}, {"version": version, "start": 1, "end": count}]
    elif trouble.endswith("abort"):
        meta["finish_reason"] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    elif trouble == "no_routes":
        meta.pop("routed_experts", None)
    elif trouble == "lost_logprob":
        meta["output_token_logprobs"].pop()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    sizes: tuple[int, ...]
    version = "none"
    long_since = 0.0  # when a long answer began; the load moves from then on
    lock = threading.Lock()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/v1/loads"):
            tokens = int(1000 * (time.monotonic() - Handler.long_since)) if Handler.long_since else 7
            load = {"num_running_reqs": 1, "num_waiting_reqs": 0, "num_used_tokens": tokens, "total_prefill_uncached_tokens": 5}
            return self.reply(200, {"loads": [load]})
        self.reply(200, {"weight_version": Handler.version})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        prompt = body.get("input_ids", [])
        with self.lock, open(self.folder / "log.jsonl", "a", encoding="utf-8") as log:
            log.write(json.dumps({"path": self.path, "version": Handler.version, "prompt": prompt, "pid": os.getpid()}) + "\n")
        if self.path == "/generate":
            return self.generate(body, prompt)
        if self.path == "/update_weights_from_disk":
            if self.happens(DIE_LOADING.get(body["weight_version"], "")):
                os.kill(os.getpid(), 9)
            if self.happens(refusal := REFUSE_LOADING.get(body["weight_version"], "")):
                return self.reply(200 if refusal == "fail_once" else 400, {"success": False, "message": "no memory left"})
        Handler.version = body.get("weight_version", Handler.version)
        ranks = [{"per_gpu_checksum": hashlib.sha256(Handler.version.encode()).hexdigest()}]  # as if weights followed from it
        self.reply(200, {"success": True, "message": "", "ranks": ranks})

    def generate(self, body: dict[str, Any], prompt: list[int]) -> None:
        trouble = self.trouble(prompt[0])
        if trouble == "die":
            os.kill(os.getpid(), 9)
        if trouble in ("hang", "slow"):
            time.sleep(3600 if trouble == "hang" else 1)
        if trouble == "always_long":
            Handler.long_since = time.monotonic()
            time.sleep(LONG_S)
            Handler.long_since = 0.0
        if trouble == "unavailable":
            return self.reply(503, {"error": "not ready"})
        if trouble == "always_refused":
            return self.reply(400, {"error": {"message": "too long for this server"}})
        limit = body["sampling_params"]["max_new_tokens"]
        reply = answer(prompt, Handler.version, self.sizes, limit, body["return_routed_experts"])
        spoil(trouble, reply)
        self.reply(200, reply)

    def trouble(self, token: int) -> str:
        name = TROUBLE.get(token, "")
        return name if self.happens(name) else ""

    def happens(self, name: str) -> bool:
        if not name or name.startswith("always"):
            return bool(name)
        try:
            (self.folder / f"{name}.happened").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def reply(self, status: int, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


if __name__ == "__main__":
    Handler.folder, Handler.sizes = Path(sys.argv[2]), tuple(map(int, sys.argv[3:]))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
