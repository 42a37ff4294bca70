"""Files of a data set or a model: a local path, or a repository of the Hugging Face hub at a revision.

A revision that is a branch is followed to its commit once. The commit is kept in revisions.json, beside what is made of the
files, and later reads use it. So a branch that moves changes neither the policy nor the problems of a run that has begun.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.artifacts import read_json, sha256, write_json
from pipeline.section import SettingsError
from pipeline.sections import SourceSettings

logger = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
SHARD = re.compile(r"(.*-)(\d+)-of-(\d+)(\..*)")
REVISIONS = "revisions.json"  # no output of a rule: Snakemake removes those before it makes them again


@dataclass(frozen=True)
class Files:
    """What was read: `folder`, the files in it, the commit (None for a local path) and whether the setting pinned it."""

    name: str
    folder: Path
    paths: tuple[Path, ...]
    revision: str | None
    pinned: bool

    def provenance(self) -> dict[str, object]:
        """For the manifest: where the bytes came from and what they were."""
        hashes = {str(path.relative_to(self.folder)): sha256(path) for path in self.paths}
        return {"path": self.name, "revision": self.revision or "local", "pinned": self.pinned, "sha256": hashes}


def fetch(
    name: str,
    source: SourceSettings,
    patterns: Sequence[str],
    kind: Literal["dataset", "model"] = "dataset",
    record: Path | None = None,
) -> Files:
    """The files of `source` that match `patterns`; `name` is the setting that an error names.

    record: the file that keeps the commits of branches; None: a branch is read as it is.

    A local path may be one file or a folder, in which any of `patterns`, or their last parts, are looked for. ValueError (or
    SettingsError) says what is missing: the path, the network, the repository, the revision, or the files.
    """
    local = Path(source.path).expanduser()
    if local.exists():
        folder, paths = (local, _matching(local, patterns)) if local.is_dir() else (local.parent, [local])
        revision, pinned = None, True
    elif REPOSITORY.fullmatch(source.path):
        pinned = COMMIT.fullmatch(source.revision or "") is not None
        folder = _download(name, source if pinned else _followed(source, record), patterns, kind)
        paths, revision = _matching(folder, patterns), folder.name
        if not pinned:
            logger.warning("%s.revision %r is a branch; read at %s, which %s keeps", name, source.revision, revision, record)
            _keep(record, source, revision)
    else:
        raise SettingsError(
            f"{name}.path: {source.path!r} neither exists nor is a hub name such as owner/name; give it a path or a name"
        )
    if not paths:
        raise ValueError(
            f"{name}.path: {source.path} holds no file like {' or '.join(patterns)}; the path or form is another, or the source "
            "has changed"
        )
    _check_shards(name, paths)
    return Files(source.path, folder, tuple(paths), revision, pinned)


def _followed(source: SourceSettings, record: Path | None) -> SourceSettings:
    """The source at the commit that its branch had when it was first read; as it is before that."""
    kept = read_json(record) if record and record.exists() else {}
    return source.model_copy(update={"revision": kept.get(_branch(source), source.revision)})


def _keep(record: Path | None, source: SourceSettings, commit: str) -> None:
    kept = read_json(record) if record and record.exists() else {}
    if record and _branch(source) not in kept:
        write_json(record, kept | {_branch(source): commit})


def _branch(source: SourceSettings) -> str:
    return f"{source.path}@{source.revision}"


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Files under `folder` that match a pattern; failing that, files directly in it with a pattern's last part."""
    for candidates in (patterns, [pattern.rpartition("/")[2] for pattern in patterns]):
        paths = sorted({path for pattern in candidates for path in folder.glob(pattern) if path.is_file()})
        if paths:
            return paths
    return []


def _check_shards(name: str, paths: Sequence[Path]) -> None:
    """ValueError that names the missing ones of files that count themselves, as train-00000-of-00003.parquet does.

    Weights count from 1 and have an index, which whoever loads them checks.
    """
    shards: dict[tuple[Path, str, str, str], set[int]] = {}
    for path in paths:
        counted = SHARD.fullmatch(path.name)
        if counted and path.suffix != ".safetensors":
            start, number, total, end = counted.groups()
            shards.setdefault((path.parent, start, total, end), set()).add(int(number))
    for (folder, start, total, end), present in shards.items():
        missing = [f"{start}{number:0{len(total)}}-of-{total}{end}" for number in range(int(total)) if number not in present]
        if missing:
            raise ValueError(
                f"{name}.path: {folder} lacks {', '.join(missing[:4])} ({len(missing)} of {int(total)} files); download it again"
            )


def _download(name: str, source: SourceSettings, patterns: Sequence[str], kind: str) -> Path:
    """The snapshot folder, which the hub's client names by the commit."""
    from huggingface_hub import errors, snapshot_download

    if source.revision is None:
        raise SettingsError(
            f"{name}.revision is null, but {source.path} is read from the hub; pin a commit (40 hexadecimal digits)"
        )
    where = f"{name}: {source.path} at revision {source.revision}"
    try:
        return Path(snapshot_download(source.path, repo_type=kind, revision=source.revision, allow_patterns=list(patterns)))
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{where}: the repository has no such revision; correct {name}.revision") from error
    except errors.GatedRepoError as error:
        raise ValueError(f"{where}: access has to be requested on the hub, then log in with `hf auth login`") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"{where}: no such repository, or it is private; correct {name}.path or log in with `hf auth login`"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ValueError(
            f"{where}: the hub cannot be reached and the files are not in the local cache; connect to the network, "
            f"or download them elsewhere and set {name}.path to the file or folder"
        ) from error
    except errors.HfHubHTTPError as error:
        raise ValueError(f"{where}: the hub refused ({error}); try again later or set {name}.path to a local copy") from error
