r"""Text to token ids and back, by the `tokenizers` file of a policy folder; and the tiny policy's own such file.

The tiny policy has one token per digit, sign or phrase of the arithmetic problems (WordLevel over pieces cut by a regular
expression), so that prompts are short and decode(encode(text)) == text for every problem and response. The folder is an ordinary
Hugging Face one: transformers.AutoTokenizer and other engines read it too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from pipeline.artifacts import atomic_path, read_json, write_json
from pipeline.problems.arithmetic import NAMES, THINGS
from pipeline.problems.chat import read_stop_tokens

logger = logging.getLogger(__name__)

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
PIECES = (
    *"0123456789+-*/%=;?x",
    " mod ",
    r"\boxed{",
    "}",
    *NAMES,
    " has ",
    " bags of ",
    *(f" {thing}" for thing in THINGS),
    ", buys ",
    ", gives ",
    ", left?",
    ", total?",
)


@dataclass(frozen=True)
class Tokenizer:
    """encode and decode of one policy folder. eos_token_ids: every id that ends a response, whichever of its files names it."""

    backend: tokenizers.Tokenizer
    eos_token_ids: tuple[int, ...]
    pad_token_id: int

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, no special tokens added. ValueError names a piece that has no token."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        unknown = self.backend.token_to_id(UNKNOWN)
        if unknown in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(unknown)]
            raise ValueError(f"{text[start:end]!r} in {text!r} has no token; known pieces: {' '.join(map(repr, PIECES))}")
        return encoding.ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`; special tokens (padding, end of response) are skipped."""
        return self.backend.decode([int(token) for token in ids], skip_special_tokens=True)

    def write(self, folder: Path) -> None:
        """Write tokenizer.json, tokenizer_config.json and generation_config.json."""
        with atomic_path(folder / "tokenizer.json") as temporary:
            self.backend.save(str(temporary))
        names = {"pad_token": self.pad_token_id, "eos_token": self.eos_token_ids[0], "unk_token": self.backend.token_to_id(UNKNOWN)}
        config = {name: self.backend.id_to_token(token) for name, token in names.items() if token is not None}
        write_json(
            folder / "tokenizer_config.json",
            {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config},
        )
        write_json(folder / "generation_config.json", {"eos_token_id": list(self.eos_token_ids), "pad_token_id": self.pad_token_id})


def build_tokenizer(vocab_size: int) -> Tokenizer:
    """The tiny policy's tokenizer; ids beyond the pieces are reserved, so that the embedding has a round number of rows."""
    special = (PAD, EOS, UNKNOWN)
    used = len(special) + len(PIECES)
    if vocab_size < used:
        raise ValueError(f"model.vocab_size {vocab_size} is too small for the {used} tokens of the arithmetic problems; use 64")
    tokens = (*special, *PIECES, *(f"<reserved_{index}>" for index in range(vocab_size - used)))
    backend = tokenizers.Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=UNKNOWN))
    longest_first = sorted(PIECES, key=len, reverse=True)
    pattern = tokenizers.Regex("|".join(map(re.escape, longest_first)))
    backend.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(special))
    return Tokenizer(backend, eos_token_ids=(tokens.index(EOS),), pad_token_id=tokens.index(PAD))


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the tokenizer of a policy folder. Where its files disagree on what ends a response, all of the ids do: see chat.py."""
    backend = tokenizers.Tokenizer.from_str(json.dumps(read_json(folder / "tokenizer.json")))
    config = read_json(folder / "generation_config.json")
    stop = read_stop_tokens(folder, backend)
    if stop.conflicts:
        logger.warning("%s: files disagree on what ends a response (%s); all of %s do", folder, "; ".join(stop.conflicts), stop.ids)
    pad = config.get("pad_token_id")
    return Tokenizer(backend, stop.ids, stop.ids[0] if pad is None else pad)
