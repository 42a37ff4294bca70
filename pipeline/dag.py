"""What the Snakefile asks for: the settings files that rules take as inputs, the resources of its jobs, and whether a run is meant.

Every stage and every cell has a settings file, an input of its rule. Its name holds a hash of what the settings compute: where
that changes, the rule has another input file, and Snakemake runs it again. `present` records the whole run; it is not a rule
input, and its name holds a hash of its content. Jobs read their operational settings (pipeline/identity.py) there. No file is
ever rewritten, so that neither a dry run nor a second run with other settings changes what a job reads. The exception is `run`,
which people read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pipeline.artifacts import Cell, Layout, write_if_changed, write_text
from pipeline.config import Preset, Settings, fingerprint
from pipeline.planning.host_memory import job_memory_mb
from pipeline.processes.placement import place
from pipeline.section import Section, SettingsError
from pipeline.sections import BasePolicySettings


def write_stage_settings(settings: Settings, paths: Layout, cells: Iterable[Cell]) -> dict[str, str]:
    """Write what each stage and each of `cells` reads; returns the path by stage, and that of `present`."""
    stages: dict[str, Section] = {
        "problems": settings.problem_stage(),
        "base_policy": BasePolicySettings(model=settings.model, warm_start=settings.warm_start),
        "score_base": settings.cell(Cell("grpo", settings.cells.table.lags[0], settings.seeds[0])),
        "mismatch": settings.cell(Cell("grpo-r3", "0", settings.seeds[0])),
        "run": settings,
    }
    for cell in cells:
        write_cell_settings(settings, paths, cell)
    text = _text(settings)
    write_if_changed(paths.settings("run"), text)  # `make watch` and `make report` look at the run that was planned last
    present = paths.settings(f"present-{hashlib.sha256(text.encode()).hexdigest()[:12]}")
    write_if_changed(present, text)
    return {name: _write(paths, name, section) for name, section in stages.items()} | {"present": str(present)}


def write_cell_settings(settings: Settings, paths: Layout, cell: Cell) -> str:
    """Write what one cell reads and return the file's path; any seed will do. SettingsError for an unknown method or lag."""
    return _write(paths, f"cells/{cell}", settings.cell(cell))


def job_resources(settings: Settings, num_nodes: int | None = None) -> dict[str, Any]:
    """What a job that trains or scores asks SLURM for; `num_nodes`: instead of the nodes of a cell. ValueError where none would do.

    mpi="" makes Snakemake run the job's command once, on the first node, with all nodes of the job at its disposal. The memory of
    a job that trains is that of its cell, a function of the wildcards.
    """
    cell = settings.cell(settings.all_cells()[0])
    place(cell)
    job, cluster = settings.job, cell.cluster
    resources: dict[str, Any] = {
        "nodes": num_nodes or (cluster.num_nodes if cluster else 1),
        "mpi": "",
        "runtime": job.time_limit_min,
        "mem_mb": job.memory_mb if num_nodes else partial(_memory_mb, settings),
        "cpus_per_task": job.cpus,
        # of a requeued job the log is continued; the signal reaches the job's steps, of which pipeline/processes/stop.py is one
        "slurm_extra": f"--open-mode=append --signal=USR1@{job.signal_lead_s}",
    }
    return resources | ({"gres": f"gpu:{cluster.gpus_per_node}"} if cluster and cluster.gpus_per_node else {})


def _memory_mb(settings: Settings, wildcards: Any) -> int:
    """The memory of a node in MiB: of the cell that the wildcards name, of any other job the least."""
    if not hasattr(wildcards, "method"):
        return settings.job.memory_mb
    return job_memory_mb(settings, Cell(wildcards.method, wildcards.lag, int(wildcards.seed)))


def refuse_other_presets(settings: Settings, arguments: Iterable[str], presets: Iterable[str] = get_args(Preset)) -> None:
    """Raise SettingsError where a command line asks for a file of another preset than the run's."""
    for target in arguments:
        folder = Path(target).parts[:2]
        for other in set(presets) - {settings.preset}:
            if folder in (Layout(other).results.parts, Layout(other).state.parts):
                raise SettingsError(
                    f"{target} belongs to preset {other}, but this run is of preset {settings.preset}; add --config preset={other}"
                )


def refuse_unnamed_preset(executor: str, config: Mapping[str, Any]) -> None:
    """Raise SettingsError where a run would spend a cluster's time on a preset that nobody named."""
    if executor == "slurm" and "preset" not in config:
        raise SettingsError(
            "a SLURM run without a preset: its configfile was replaced by one on the command line; add preset to that file or "
            "--config preset=full"
        )


def _write(paths: Layout, name: str, section: Section) -> str:
    path = paths.settings(f"{name}-{fingerprint(section)}")
    if not path.exists():  # one that exists computes the same; rewritten it would be newer than the results made from it
        write_text(path, _text(section))
    return str(path)


def _text(section: Section) -> str:
    return section.model_dump_json(indent=1) + "\n"
