"""What a cell must remember to continue as if it had never stopped.

A checkpoint folder step_000040/ holds trainer/ (weights and Adam), one folder per published version that is still needed (the
current one, and the one that samples the next batch), the rows recorded so far, and progress of the schedule in cell.json, which
also carries the SHA-256 of every other file. The folder is filled under another name and renamed, so it is whole or absent;
a damaged one is reported and the checkpoint before it is used.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from pipeline.artifacts import atomic_folder, read_json, sha256, sha256_of, write_json, write_rows
from pipeline.cell.step_row import StepRow
from pipeline.evaluation.rows import EvalRow
from pipeline.published_weights import PublishedWeights
from pipeline.trainer.trainer import PolicyTrainer

_KEEP = 2  # the newest checkpoint and the one to fall back on


@dataclass
class CellState:
    """The moving part of a cell besides the trainer.

    next_batch: the first rollout batch not yet trained on.  step_rows, eval_rows: the rows of steps.parquet and evals.parquet.
    published: version -> weights, every version still needed.  best: (score, version) of the best evaluation so far.
    retained: "best" and "last" -> version, path and SHA-256 of the weights kept on disk.  examples: graded responses of the newest
    evaluation.  resumed_at: the optimizer steps at which a run continued from a checkpoint.  revisions: the code of each attempt,
    where it differs from the one before.  seconds: wall time by activity, over all attempts.
    """

    next_batch: int = 0
    step_rows: list[StepRow] = field(default_factory=list)
    eval_rows: list[EvalRow] = field(default_factory=list)
    published: dict[int, PublishedWeights] = field(default_factory=dict)
    best: tuple[float, int] | None = None
    retained: dict[str, dict[str, Any]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    resumed_at: list[int] = field(default_factory=list)
    revisions: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def newest(self) -> PublishedWeights:
        return self.published[max(self.published)]


def save(folder: Path, step: int, state: CellState, trainer: PolicyTrainer) -> None:
    """Write checkpoint step_<step> below `folder` and remove those older than the one before it."""
    with atomic_folder(folder / f"step_{step:06d}") as part:
        (part / "trainer").mkdir()
        trainer.save(part / "trainer")
        for version, published in state.published.items():
            published.write(part / f"published_{version}")
        write_rows(part / "steps.parquet", [row.flat() for row in state.step_rows])
        write_rows(part / "evals.parquet", [row.flat() for row in state.eval_rows])
        names = ("next_batch", "best", "retained", "examples", "resumed_at", "revisions", "seconds")
        content = {name: getattr(state, name) for name in names} | {"versions": sorted(state.published)}
        write_json(part / "cell.json", content | {"sha256": _digests(part)})
    kept, old = _checkpoints(folder)[:_KEEP], _checkpoints(folder)[_KEEP:]
    for outdated in old:
        shutil.rmtree(outdated)
    prune_weights({entry["path"] for path in kept for entry in read_json(path / "cell.json")["retained"].values()})


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder`, by its path in it; large files are hashed side by side."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): value for path, value in sha256_of(paths).items()}


def prune_weights(keep: set[str]) -> None:
    """Remove the retained weights beside those in `keep`; an older checkpoint may still name the best of its time."""
    kept = {Path(path).resolve() for path in keep}
    for folder in {path.parent for path in kept}:
        for path in folder.glob("version_*"):
            if path.resolve() not in kept:
                shutil.rmtree(path)


class Damaged(ValueError):
    """A checkpoint's own content is not what was written. Anything else that goes wrong with one may pass, and is no damage."""


def resume(folder: Path, trainer: PolicyTrainer, published: Path) -> CellState | None:
    """Restore the trainer and return the state of the newest whole checkpoint, or None where there is none.

    published: a folder for the versions that the checkpoint holds; they are needed longer than the checkpoint is kept. A damaged
    checkpoint is reported and set aside under another name, so that it is never taken for the newest again; a full disk or a
    trainer of another layout ends the attempt and leaves the checkpoints alone.
    """
    for checkpoint in _checkpoints(folder):
        try:
            state, versions = _read(checkpoint)
        except Damaged as error:
            Console(stderr=True).print(f"checkpoint {checkpoint} is damaged and is not used: {error}")
            shutil.rmtree(aside := checkpoint.with_name(f"damaged_{checkpoint.name}"), ignore_errors=True)
            checkpoint.rename(aside)
            continue
        state.published = {version: _moved(checkpoint / f"published_{version}", published) for version in versions}
        trainer.restore(checkpoint / "trainer")
        state.resumed_at.append(trainer.version)
        return state
    return None


def newest_step(folder: Path) -> int:
    """The optimizer step of the newest checkpoint below `folder`, 0 where there is none."""
    return max((int(path.name.removeprefix("step_")) for path in folder.glob("step_*")), default=0)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("step_*"), reverse=True)


def _read(checkpoint: Path) -> tuple[CellState, list[int]]:
    """The state but for weights, and the versions that the checkpoint holds. Every file is compared with its digest first."""
    try:
        content = read_json(checkpoint / "cell.json")
        digests, versions = content.pop("sha256"), content.pop("versions")
        content["best"] = tuple(content["best"]) if content["best"] else None
        state = CellState(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"cell.json: {error}") from error
    for name, expected in digests.items():
        path = checkpoint / name
        if not path.exists() or sha256(path) != expected:
            raise Damaged(f"{name} is missing or its content is not what was written")
    state.step_rows = [StepRow.of(row) for row in pq.read_table(checkpoint / "steps.parquet").to_pylist()]
    state.eval_rows = [EvalRow.of(row) for row in pq.read_table(checkpoint / "evals.parquet").to_pylist()]
    return state, versions


def _moved(source: Path, folder: Path) -> PublishedWeights:
    PublishedWeights.read(source).write(folder / source.name)
    return PublishedWeights.read(folder / source.name)
