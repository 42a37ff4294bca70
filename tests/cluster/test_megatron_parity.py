"""The Megatron trainer computes what the PyTorch trainer computes, in every layout: log-probs, rows, gradients, weights.

Weights move in proportion to their gradients here (megatron_cells.TRAINER), so equal weights after a step are equal gradients.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config import CellSettings
from pipeline.policy.hf_folder import load_hf_state
from pipeline.policy.qwen3_moe import Policy
from pipeline.processes.hosts import THIS_HOST, free_port, interface_of
from pipeline.published_weights import PublishedWeights
from pipeline.trainer.megatron.trainer import Rendezvous, rank_specs
from pipeline.trainer.microbatches import micro_batches, split
from tests.cluster.megatron_cells import BATCHES, CASES, LAYOUTS, OTHER, TWO_BATCHES, base_folder, batch, cell, torch_trainer

PAIRS = [(layout, name) for layout in LAYOUTS for name in CASES[layout] if name != "bfloat16"]


def settings_of(layout: str, name: str) -> CellSettings:
    method, changes = CASES[layout][name]
    return cell(method, layout, **changes)


class Ranks:
    """Runs the ranks of a layout once, when something is first asked of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._found = folder, dict[str, dict[str, Any]]()

    def found(self, layout: str) -> dict[str, Any]:
        if layout not in self._found:
            if layout != OTHER:
                self.found(OTHER)
            self._found[layout] = self._run(layout)
        return self._found[layout]

    def _run(self, layout: str) -> dict[str, Any]:
        (self.folder / layout).mkdir()
        for name in CASES[layout]:
            base_folder(self.folder, settings_of(layout, name))
        meet = Rendezvous("nobody", "", str(free_port()), interface_of(THIS_HOST.address))
        specs = rank_specs(settings_of(layout, "sat-gspo-r3"), (THIS_HOST,), meet)
        command = [sys.executable, "-m", "tests.cluster.megatron_ranks", str(self.folder / layout), layout]
        log = self.folder / layout / "log"
        with open(log, "wb") as output:
            ranks = [
                subprocess.Popen(command, env=os.environ | dict(spec.environment), stdout=output, stderr=subprocess.STDOUT)
                for spec in specs
            ]
            codes = [rank.wait() for rank in ranks]
        assert codes == [0] * len(ranks), log.read_text()[-6000:]
        return torch.load(self.folder / layout / "found.pt")

    def weights(self, layout: str, name: str) -> dict[str, torch.Tensor]:
        self.found(layout)
        return dict(PublishedWeights.read(self.folder / layout / name).weights)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return Ranks(tmp_path_factory.mktemp("ranks"))


def response_logprobs(settings: CellSettings, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    policy = Policy(settings.model)
    load_hf_state(policy, weights)
    replay = settings.resolved_method().routing_replay
    (micro,) = micro_batches(batch(settings).samples, 100_000, "token_mean", replay, torch.float32)
    with torch.no_grad():
        scores = policy.response_logprobs(micro.packed, settings.rollout.temperature, micro.packed.routed_experts)
    return scores.logprobs


@pytest.mark.parametrize(("layout", "name"), PAIRS)
def test_steps_equal_those_of_the_torch_trainer(ranks: Ranks, layout: str, name: str) -> None:
    found, settings = ranks.found(layout)[name], settings_of(layout, name)
    trainer = torch_trainer(settings, base_folder(ranks.folder, settings))
    generating = trainer.publish()
    start = dict(generating.weights)
    assert (found["logprobs"] - response_logprobs(settings, start)).abs().max() <= 1e-5
    batches = BATCHES.get(name, TWO_BATCHES)
    rows = [update.flat() for index, steps in batches for update in trainer.train_batch(batch(settings, index), steps, generating)]
    for row, expected in zip(found["rows"], rows, strict=True):
        assert row.keys() == expected.keys()
        for column in expected.keys() - {"train_s"}:
            assert row[column] == pytest.approx(expected[column], rel=1e-5, abs=1e-6, nan_ok=True), column
    weights, expected = ranks.weights(layout, name), trainer.publish().weights
    assert weights.keys() == expected.keys()
    for tensor in expected:
        moved = (expected[tensor] - start[tensor]).abs().max()
        assert (weights[tensor] - expected[tensor]).abs().max() <= 2e-4 * moved, tensor


def test_the_cases_hold_what_they_are_for(ranks: Ranks) -> None:
    """The gradient is clipped, weights move, a sample has a micro-batch to itself, data ranks get different numbers of them, and
    tensor ranks packings that they cannot cut into equal parts."""
    settings = settings_of("DP2", "sat-gspo-r3")
    sizes = [len(sample.response.prompt_ids) + len(sample.response.response_ids) for sample in batch(settings).samples]
    parts = split(sizes, settings.trainer.micro_batch_tokens)
    lengths = [sum(sizes[index] for index in part) for part in parts]
    assert len(parts) % 2 == 1 and any(length % 4 for length in lengths) and max(lengths) > settings.trainer.micro_batch_tokens
    assert [len(parts[index]) for index, length in enumerate(lengths) if length > settings.trainer.micro_batch_tokens] == [1]
    assert all(row["grad_norm"] > settings.trainer.gradient_clip for row in ranks.found("DP2")["sat-gspo-r3"]["rows"])
    weights, start = ranks.weights("DP2", "sat-gspo-r3"), PublishedWeights.read(base_folder(ranks.folder, settings)).weights
    assert all((weights[name] - start[name]).abs().max() > 1e-3 for name in weights)


def test_the_loss_does_not_depend_on_micro_batches(ranks: Ranks) -> None:
    one, several = (ranks.found("one process")[name]["rows"] for name in ("one micro-batch", "sat-gspo-r3"))
    for row, other in zip(one, several, strict=True):
        assert all(
            row[column] == pytest.approx(other[column], rel=1e-5, abs=1e-6, nan_ok=True) for column in row if column != "train_s"
        )


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "DP2"])
def test_replaying_the_routers_own_choice_changes_nothing(ranks: Ranks, layout: str) -> None:
    own, replayed = ranks.found(layout)["replay"]
    assert torch.equal(own, replayed)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_is_not_finite_is_skipped_by_all_ranks(ranks: Ranks, layout: str) -> None:
    row = ranks.found(layout)["skipped"]
    assert row["skipped"] and not row["finite"] and math.isnan(row["loss"]) and math.isnan(row["grad_norm"])
    before, after = ranks.weights(layout, "sat-gspo-r3"), ranks.weights(layout, "skipped")
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != OTHER and "grpo" in CASES[layout]])
def test_weights_written_in_one_layout_are_the_same_in_another(ranks: Ranks, layout: str) -> None:
    written, loaded = ranks.weights(OTHER, "sat-gspo-r3"), ranks.weights(layout, "loaded")
    assert written.keys() == loaded.keys() and all(torch.equal(written[name], loaded[name]) for name in written)


def test_bfloat16_is_near_float32_and_continues_bit_for_bit(ranks: Ranks) -> None:
    layout = "DP2 distributed optimizer"
    found, reference = ranks.found(layout), ranks.found(layout)["sat-gspo-r3"]
    assert (found["bfloat16"]["logprobs"] - reference["logprobs"]).abs().mean() < 0.02
    for row, other in zip(found["bfloat16"]["rows"], reference["rows"], strict=True):
        assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.1)
    uninterrupted, restored = ({**row, "train_s": 0.0} for row in found["continued"])
    assert uninterrupted == pytest.approx(restored, rel=0, abs=0, nan_ok=True)
    first, second = ranks.weights(layout, "uninterrupted"), ranks.weights(layout, "restored")
    assert all(torch.equal(first[name], second[name]) for name in first)
