"""Every path under results/ and state/, and the one way a file is written: whole or not at all.

results/<preset>/ holds what the DAG declares as outputs. Snakemake deletes outputs before a rerun and after a failure. What
must survive that lies in state/<preset>/: checkpoints, retained weights, progress.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFERENCE = Path("results/reference")
COLLECTED = ("facts.json", "steps.parquet", "evaluations.parquet", "scores.parquet", "base.parquet")


@dataclass(frozen=True, order=True)
class Cell:
    """One trained run: a method at a lag with a seed. str(cell) is its path below cells/."""

    method: str
    lag: str
    seed: int

    def __str__(self) -> str:
        return f"{self.method}/lag{self.lag}/seed{self.seed}"


@dataclass(frozen=True)
class Layout:
    """Paths of one preset, relative to the repository root."""

    preset: str

    @property
    def results(self) -> Path:
        return Path("results") / self.preset

    @property
    def state(self) -> Path:
        return Path("state") / self.preset

    @property
    def problems(self) -> Path:
        return self.results / "problems"

    @property
    def base_policy(self) -> Path:
        return self.results / "base_policy"

    @property
    def collected(self) -> Path:
        """The folder of COLLECTED: what rule collect read of the cells, for all later stages."""
        return self.results / "collected"

    def cell(self, cell: Cell | str) -> Path:
        return self.results / "cells" / str(cell)

    def cell_state(self, cell: Cell | str) -> Path:
        return self.state / "cells" / str(cell)

    def settings(self, name: str) -> Path:
        """The resolved settings that a stage reads: an input file of its rule, rewritten only when its content changes."""
        return self.state / "settings" / f"{name}.json"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; on success flush it to disk and rename it over `path`, on failure remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary sibling of `folder`; once filled flush and rename it over `folder`, else remove it."""
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    try:
        yield part
        for path in part.rglob("*"):
            if path.is_file():
                with open(path, "rb") as handle:
                    os.fsync(handle.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, sort_keys=False) + "\n")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows of one kind as a parquet file, atomically."""
    import pyarrow as pa  # here: the command line and the DAG read this module, and neither writes rows
    import pyarrow.parquet as pq

    with atomic_path(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows), temporary)


def write_if_changed(path: Path, text: str) -> None:
    """Write `text` unless the file already says exactly that: its modification time then means "the content changed"."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def read_json(path: Path) -> Any:
    """Read a JSON file; a missing or damaged one is a ValueError that names the file and the remedy."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist; run the rule that makes it, e.g. `snakemake {path}`") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and run `snakemake {path}`") from error


def sha256(path: Path) -> str:
    """A file's hash, read in pieces."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_of(paths: Sequence[Path], digest: Callable[[Path], str] = sha256) -> dict[Path, str]:
    """The hash of each file; several are hashed side by side. digest: what of a file is hashed, the whole of it if not given."""
    with ThreadPoolExecutor(min(8, len(paths) or 1)) as pool:
        return dict(zip(paths, pool.map(digest, paths), strict=True))
