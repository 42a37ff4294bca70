"""Fresh scores: new samples on held-out problems for weights that were chosen before, so that choosing cannot flatter them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.artifacts import read_json
from pipeline.broadcast.published import PublishedWeights
from pipeline.checkpoint import write_rows
from pipeline.config import CellSettings
from pipeline.evaluation.evaluate import Evaluation
from pipeline.launch.engines import rollout_engine
from pipeline.policy.checkpoint import hf_state, read_policy
from pipeline.policy.cpu import configure_cpu
from pipeline.policy.tokenizer import read_tokenizer
from pipeline.problems.prepare import read_problems


def score_cell(run: Path, problems: Path, base_policy: Path, out: Path) -> None:
    """Score the retained weights ("best" and "last") of a finished cell on the scoring problems.

    Raises ValueError when run.json is missing or the weights it names are gone or changed.
    """
    record = read_json(run)
    settings = CellSettings.model_validate(record["settings"])
    weights = {
        name: PublishedWeights.read(Path(entry["path"]), entry["sha256"])
        for name, entry in sorted(record["retained_weights"].items())
    }
    scoring = read_problems(problems / "scoring.parquet")
    write_rows(out, _score(settings, base_policy, [(name, published, scoring, "scoring") for name, published in weights.items()]))


def score_base(settings: CellSettings, problems: Path, base_policy: Path, out: Path) -> None:
    """Score the base policy on the evaluation problems (where every curve starts) and on the scoring problems."""
    base = PublishedWeights(0, hf_state(read_policy(base_policy)[0]))
    parts = [(name, base, read_problems(problems / f"{name}.parquet"), name) for name in ("evaluation", "scoring")]
    write_rows(out, _score(settings, base_policy, parts))


def _score(settings: CellSettings, base_policy: Path, parts: list[tuple[str, PublishedWeights, list, str]]) -> list[dict[str, Any]]:
    configure_cpu(settings.trainer.threads)
    inline = settings.model_copy(update={"rollout": settings.rollout.model_copy(update={"overlap": False})})
    tokenizer = read_tokenizer(base_policy)
    engine = rollout_engine(inline, tokenizer)
    rows = []
    try:
        for name, published, problems, purpose in parts:
            engine.load(published)
            evaluation = Evaluation(engine, tokenizer, problems, settings, published.version, purpose)
            rows += [{"checkpoint": name, **row} for row in evaluation.rows()]
    finally:
        engine.close()
    return rows
