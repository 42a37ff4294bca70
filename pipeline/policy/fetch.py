"""The published base policy: a hub repository at a revision, or a local folder, checked and brought into a policy folder.

Every shard is read through once: its hash goes into manifest.json and is compared with the one the hub publishes; the tensors'
names, shapes and byte counts are compared with what the settings describe. Nothing of this happens again when cells start: they
read the manifest. The folder holds files of its own (hard links where the file system allows it): it can be copied elsewhere, and
needs no hub cache.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors

from pipeline.artifacts import atomic_path, read_json, sha256_of, write_json
from pipeline.policy.hf_folder import CONFIG_KEYS, MANIFEST, hf_shapes, read_model_settings
from pipeline.problems.hub import COMMIT, REVISIONS, Files, fetch
from pipeline.section import SettingsError
from pipeline.sections import ModelSettings, SourceSettings

logger = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
PATTERNS = ("config.json", *TOKENIZER_FILES, "model.safetensors.index.json", "*.safetensors")


def fetch_policy(model: ModelSettings, out: Path) -> None:
    """Bring the files of `model.path` into `out` and write manifest.json last. A branch is read at the commit it had first.

    Raises ValueError that names the file where the config is another model's, a shard is missing, truncated or changed, or a tensor
    is missing, unexpected or of another shape.
    """
    assert model.path is not None
    files = fetch("model", SourceSettings(path=model.path, revision=model.revision), PATTERNS, "model", out / REVISIONS)
    _check_config(files.folder, model)
    shards = [path for path in files.paths if path.suffix == ".safetensors"]
    check_tensors(files.folder, shards, model)
    published = _published_hashes(model.path, files)
    hashes = {path.name: value for path, value in sha256_of(files.paths).items()}
    changed = [name for name, expected in published.items() if hashes.get(name) != expected]
    if changed:
        raise ValueError(f"{files.folder}: {', '.join(changed)} differ from what the hub publishes; delete them and fetch again")
    out.mkdir(parents=True, exist_ok=True)
    for path in files.paths:
        _bring(path.resolve(), out / path.name)
    write_json(
        out / MANIFEST,
        {"path": files.name, "revision": files.revision or "local", "verified_against_hub": sorted(published), "sha256": hashes},
    )


def _bring(source: Path, target: Path) -> None:
    """The file under another name: a second name of the same bytes, or a copy where it lies on another file system."""
    with atomic_path(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError:  # another file system, or one without hard links, or another owner's file
            shutil.copyfile(source, temporary)


def check_tensors(folder: Path, shards: list[Path], model: ModelSettings) -> None:
    """Every weight once, with its shape, and no shard shorter than its header says. Only headers are read."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        absent = sorted(set(read_json(index)["weight_map"].values()) - {path.name for path in shards})
        if absent:
            raise ValueError(f"{folder} lacks the shards {', '.join(absent)} that {index.name} lists; fetch them again")
    expected, found = hf_shapes(model), {}
    for path in shards:
        try:
            with safetensors.safe_open(path, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 - not a dict
                    if name in found:
                        raise ValueError(f"{path} holds {name}, which {found[name][1]} holds too; remove one of the files")
                    found[name] = tuple(handle.get_slice(name).get_shape()), path.name
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is damaged or incomplete ({error}); delete it and fetch it again") from error
    problems = [f"missing {name}" for name in expected.keys() - found.keys()]
    problems += [f"unexpected {name} in {found[name][1]}" for name in found.keys() - expected.keys()]
    problems += [
        f"{name} of shape {list(shape)} in {file} instead of {list(expected[name])}"
        for name, (shape, file) in found.items()
        if name in expected and shape != expected[name]
    ]
    if problems:
        shown = "; ".join(sorted(problems)[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise ValueError(f"{folder} does not hold the policy that `model` describes: {shown}")


def _check_config(folder: Path, model: ModelSettings) -> None:
    read = read_model_settings(folder)
    differing = [
        f"{key} is {getattr(read, name)!r} in config.json and model.{name} is {getattr(model, name)!r}"
        for name, key in CONFIG_KEYS.items()
        if getattr(read, name) != getattr(model, name)
    ]
    if differing:
        raise SettingsError(f"{folder} is another model than `model` describes: {'; '.join(differing)}")


def _published_hashes(repository: str, files: Files) -> Mapping[str, str]:
    """SHA-256 of the large files by name, as the hub publishes them; empty for a local folder, or where the hub cannot be asked."""
    if files.revision is None or not re.fullmatch(COMMIT, files.revision):
        return {}
    from huggingface_hub import HfApi, errors

    try:
        info: Any = HfApi().model_info(repository, revision=files.revision, files_metadata=True)
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, OSError) as error:
        logger.warning("%s: the hub's hashes could not be read (%s); shards are checked by size and shape only", repository, error)
        return {}
    return {
        entry.rfilename: entry.lfs.sha256 for entry in info.siblings or [] if entry.lfs and entry.rfilename.endswith(".safetensors")
    }
