"""The warm start: deterministic, blind to held-out problems, and it learns."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch

from pipeline.policy import warm_start as module
from pipeline.policy.cpu import configure_cpu
from pipeline.policy.tokenizer import build_tokenizer
from pipeline.policy.warm_start import learning_rate_share, warm_start
from pipeline.problems.prepare import prepare, read_problems
from pipeline.sections import ProblemSettings, WarmStartSettings
from tests.unit.test_policy_hf_folder import make_policy

PROBLEMS = ProblemSettings(kind="arithmetic", seed=5, train_count=40, evaluation_count=20, scoring_count=20)
WARM_START = WarmStartSettings(
    seed=0, steps=30, batch_size=16, learning_rate=3e-3, direct_answer_share=0.2, wrong_step_share=0.2, threads=1
)


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("problems")
    prepare(PROBLEMS, folder)
    return folder


def run(problems: Path, folder: Path, seed: int, **changes: object) -> tuple[bytes, list[str]]:
    lines: list[str] = []
    warm_start(problems, WARM_START.model_copy(update=changes), make_policy().settings, seed, folder, lines.append)
    return (folder / "model.safetensors").read_bytes(), lines


def test_same_seed_same_bytes_other_seed_other_bytes(problems: Path, tmp_path: Path) -> None:
    first, second, other = (run(problems, tmp_path / name, seed)[0] for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert first == second != other


def test_it_learns_and_says_so(problems: Path, tmp_path: Path) -> None:
    _, lines = run(problems, tmp_path, 0, steps=150)
    line = lines[-1]
    assert line.startswith("warm start: step 150 of 150, loss ") and line.endswith(", 0 s left")
    assert float(line.split("loss ")[1].split(",")[0]) < 2.0  # the uniform policy has log 64 = 4.16


def test_held_out_problems_never_occur(problems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among 6,000 problems drawn the same way without the exclusion, some are held out; the stream has none of them."""
    held_out = {p.prompt for split in ("evaluation", "scoring") for p in read_problems(problems / f"{split}.parquet")}
    drawn: list[str] = []
    tokenizer = build_tokenizer(64)
    spy = SimpleNamespace(
        encode=lambda text: (drawn.append(text), tokenizer.encode(text))[1], eos_token_ids=tokenizer.eos_token_ids
    )

    def prompts(excluded: set[str]) -> set[str]:
        drawn.clear()
        next(module._batches(spy, WARM_START.model_copy(update={"batch_size": 6000}), excluded, Random(0)))
        return set(drawn[::2])

    assert len(prompts(set()) & held_out) > 5
    assert not prompts(held_out) & held_out


def test_learning_rate_rises_then_falls_to_a_twentieth() -> None:
    assert learning_rate_share(0, 1000) == pytest.approx(1 / 30)
    assert learning_rate_share(29, 1000) == pytest.approx(1.0, abs=0.005)
    assert learning_rate_share(500, 1000) == pytest.approx(0.525)
    assert learning_rate_share(999, 1000) == pytest.approx(0.05, abs=1e-4)


def test_diverged_training_is_a_clear_error(problems: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"warm start: loss nan at step \d+; lower warm_start.learning_rate"):
        run(problems, tmp_path, 0, learning_rate=1e30)
    assert not (tmp_path / "model.safetensors").exists()


def test_configure_cpu_sets_threads_and_flushes_denormals() -> None:
    configure_cpu(1)
    assert torch.get_num_threads() == 1
    assert float(torch.tensor(1e-30) * torch.tensor(1e-15)) == 0.0
