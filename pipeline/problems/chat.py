"""What the tokenizer files of a policy folder say about conversations: the chat template and the ids that end a response.

A base model's files contradict each other: the configs of Qwen3-Base name <|endoftext|> alone, while its chat template ends a turn
with <|im_end|>. A response ends at any of them, so all of them stop, and the contradiction is listed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pipeline.artifacts import read_json

END_TOKENS = ("<|endoftext|>", "<|im_end|>")  # end of text and end of turn of the Qwen family; both stop wherever both exist


@dataclass(frozen=True)
class StopTokens:
    """ids: every token id that ends a response. conflicts: the files that name other ids than `ids`, as "file: ids"."""

    ids: tuple[int, ...]
    conflicts: tuple[str, ...]


def read_stop_tokens(folder: Path, backend: tokenizers.Tokenizer) -> StopTokens:
    """The union of what generation_config.json, config.json and tokenizer_config.json name, and of END_TOKENS that exist.

    ValueError if nothing ends a response, or if a file names a token that the tokenizer does not have.
    """
    named: dict[str, tuple[int, ...]] = {}
    for name in ("generation_config.json", "config.json"):
        if (folder / name).exists():
            end = read_json(folder / name).get("eos_token_id")
            named[name] = () if end is None else tuple(end) if isinstance(end, list) else (end,)
    token = _config(folder).get("eos_token")
    if token is not None:
        content = token["content"] if isinstance(token, dict) else token
        end = backend.token_to_id(content)
        if end is None:
            raise ValueError(
                f"{folder}/tokenizer_config.json: eos_token {content!r} is not in tokenizer.json; the files do not belong together"
            )
        named["tokenizer_config.json"] = (end,)
    known = tuple(end for end in map(backend.token_to_id, END_TOKENS) if end is not None)
    ids = tuple(dict.fromkeys([end for ends in named.values() for end in ends] + list(known)))
    if not ids:
        raise ValueError(f"{folder} names no token that ends a response; set eos_token_id in its generation_config.json")
    conflicts = tuple(f"{name}: {sorted(ends)}" for name, ends in named.items() if ends and set(ends) != set(ids))
    return StopTokens(ids, conflicts)


def read_chat_template(folder: Path) -> Callable[[str], str]:
    """A function from a user's message to the text that the policy continues, by the folder's chat template."""
    source = _template(folder)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    special = {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in _config(folder).items()
        if name in ("bos_token", "eos_token", "pad_token", "unk_token") and token is not None
    }
    try:
        template = environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"the chat template of {folder} is not valid Jinja: {error}") from error

    def render(message: str) -> str:
        try:
            return template.render(
                messages=[{"role": "user", "content": message}], add_generation_prompt=True, tools=None, **special
            )
        except TemplateError as error:
            raise ValueError(f"the chat template of {folder} refuses the message {message[:100]!r}: {error}") from error

    return render


def _template(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    source = _config(folder).get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    if source is None:
        raise ValueError(
            f"{folder} has no chat template (chat_template.jinja or tokenizer_config.json); set published.chat_template to false"
        )
    return source


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.exists() else {}


def _refuse(message: str) -> None:
    raise TemplateError(message)
