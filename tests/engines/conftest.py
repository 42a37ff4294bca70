"""A policy small enough for milliseconds, with the arithmetic tokenizer: random weights, nothing trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.cell.loop import CellInputs
from pipeline.config import load_settings
from pipeline.policy.hf_folder import hf_state
from pipeline.policy.qwen3_moe import Policy
from pipeline.policy.tokenizer import Tokenizer, build_tokenizer
from pipeline.problems.prepare import prepare, read_problems
from pipeline.published_weights import PublishedWeights
from pipeline.records import Request, SamplingKey
from pipeline.sections import ModelSettings

PROMPTS = ("17+5-4?", "3x+4=19?", "Tom has 12 pens, buys 3, gives 4, left?", "6*7 mod 5?")


@pytest.fixture(scope="session")
def model() -> ModelSettings:
    return load_settings().model


@pytest.fixture(scope="session")
def dense_first(model: ModelSettings) -> ModelSettings:
    return model.model_copy(update={"dense_layers": (0,), "num_layers": 3})


@pytest.fixture(scope="session")
def tokenizer(model: ModelSettings) -> Tokenizer:
    return build_tokenizer(model.vocab_size)


def policy(model: ModelSettings, seed: int = 0) -> Policy:
    return Policy(model, torch.Generator().manual_seed(seed))


def published(model: ModelSettings, version: int = 0, seed: int = 0) -> PublishedWeights:
    return PublishedWeights(version, hf_state(policy(model, seed)))


def requests(tokenizer: Tokenizer, group_size: int = 4, draw: int = 0) -> list[Request]:
    return [
        Request(np.array(tokenizer.encode(prompt), dtype=np.int32), SamplingKey(0, "train", draw, number, sample))
        for number, prompt in enumerate(PROMPTS)
        for sample in range(group_size)
    ]


@pytest.fixture(scope="session")
def inputs(tmp_path_factory, tokenizer) -> CellInputs:
    folder = tmp_path_factory.mktemp("problems")
    settings = load_settings().problems.model_copy(update={"train_count": 40, "evaluation_count": 5, "scoring_count": 5})
    prepare(settings, folder)
    return CellInputs(read_problems(folder / "train.parquet"), read_problems(folder / "evaluation.parquet"), tokenizer)
