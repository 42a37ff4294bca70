"""A server on the loopback interface that speaks SGLang's /generate: one text prompt in, text and meta_info out."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    """What the server answers: the text before stop strings, how it ended, its tokens, the version of the weights."""

    text: str
    finish_reason: str
    completion_tokens: int
    weight_version: str


@dataclass
class Server:
    """url of /generate, and every request's body in the order of arrival."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def serve(reply: Callable[[str, int], Reply]) -> Iterator[Server]:
    """Answer request number `count` (from 0) for a prompt with `reply(prompt, count)`, cut at stop strings as SGLang does."""
    state, lock, seen = Server(), threading.Lock(), Counter[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/generate":
                self.send_error(404)
                return
            with lock:
                state.requests.append(body)
                count = seen[body["text"]]
                seen[body["text"]] += 1
            answer = reply(body["text"], count)
            text = min((answer.text.partition(stop)[0] for stop in body["sampling_params"]["stop"]), key=len, default=answer.text)
            reason: dict[str, Any] = {"type": answer.finish_reason}
            reason |= {"length": answer.completion_tokens} if answer.finish_reason == "length" else {"matched": 151643}
            meta = {
                "id": str(count),
                "finish_reason": reason,
                "prompt_tokens": len(body["text"].split()),
                "weight_version": answer.weight_version,
                "completion_tokens": answer.completion_tokens,
                "cached_tokens": 0,
            }
            payload = json.dumps({"text": text, "meta_info": meta}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
