"""Fresh scores: new samples on held-out problems for weights that were chosen before, so that choosing cannot flatter them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.artifacts import read_json, write_rows
from pipeline.config import CellSettings, operated
from pipeline.engines import rollout_engine
from pipeline.evaluation.evaluate import Evaluation
from pipeline.evaluation.lm_eval_score import lm_eval_rows
from pipeline.evaluation.rows import ScoreRow
from pipeline.policy.cpu import configure_cpu
from pipeline.policy.tokenizer import read_tokenizer
from pipeline.problems.aime24 import COPY
from pipeline.problems.prepare import read_problems
from pipeline.published_weights import PublishedWeights, StoredWeights


def score_cell(
    run: Path, problems: Path, base_policy: Path, out: Path, aime24: Path | None = None, present: Path | None = None
) -> None:
    """Score the retained weights ("best" and "last") of a finished cell on the scoring problems; with SGLang, through lm-eval.

    aime24: where rows for the problems of AIME 2024 go as well, for a policy whose scoring problems are others.  present: settings
    of the present run, whose operational ones replace those that the cell was trained with. Raises ValueError when run.json is
    missing or the weights it names are gone or changed.
    """
    record = read_json(run)
    settings = operated(record["settings"], present, str(run))
    weights = {
        name: PublishedWeights.read(Path(entry["path"]), entry["sha256"])
        for name, entry in sorted(record["retained_weights"].items())
    }
    scoring = problems / "scoring.parquet"
    if settings.rollout.engine == "sglang":
        outputs = {scoring: out} | ({COPY: aime24} if aime24 else {})
        logs = out.with_name("lm_eval")
        for path, rows in lm_eval_rows(settings, base_policy, weights, tuple(outputs), logs).items():
            write_rows(outputs[path], rows)
        return
    held_out = read_problems(scoring)
    write_rows(out, _score(settings, base_policy, [(name, published, held_out, "scoring") for name, published in weights.items()]))


def score_base(settings: CellSettings, problems: Path, base_policy: Path, out: Path) -> None:
    """Score the base policy on the evaluation problems (where every curve starts) and on the scoring problems."""
    base = PublishedWeights(0, StoredWeights(base_policy), base_policy)
    parts = [(name, base, read_problems(problems / f"{name}.parquet"), name) for name in ("evaluation", "scoring")]
    write_rows(out, _score(settings, base_policy, parts))


def _score(settings: CellSettings, base_policy: Path, parts: list[tuple[str, PublishedWeights, list, str]]) -> list[dict[str, Any]]:
    configure_cpu(settings.trainer.threads)
    tokenizer = read_tokenizer(base_policy)
    engine = rollout_engine(settings, base_policy, tokenizer, base_policy / "logs", overlap=False)
    rows = []
    try:
        for name, published, problems, purpose in parts:
            engine.load(published)
            evaluation = Evaluation(engine, tokenizer, problems, settings, published.version, purpose)
            rows += [ScoreRow(row, name).flat() for row in evaluation.rows()]
    finally:
        engine.close()
    return rows
