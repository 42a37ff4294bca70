"""The DAG: what is planned, what is made, what reruns after a change - and what a kill leaves behind."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow.conftest import MICRO, REPOSITORY, Workflow

ASSEMBLY = {"collect": 1, "table1": 1, "figures": 1, "diff": 1, "report": 1}


def test_a_clean_tree_plans_every_cell_in_seconds(tmp_path):
    workflow = Workflow(tmp_path, {})
    assert workflow.planned() == {
        "prepare": 1,
        "base_policy": 1,
        "score_base": 1,
        "train_cell": 33,
        "score_cell": 33,
        "mismatch": 1,
        **ASSEMBLY,
    }
    assert workflow.planned("--config", "preset=rehearsal")["train_cell"] == 2
    assert workflow.planned("--config", "preset=stress")["train_cell"] == 30
    assert workflow.planned("--config", "preset=full", "seeds=3")["train_cell"] == 99
    assert workflow.planned("--config", "ablations=true")["train_cell"] == 33 + 6 + 9 + 22
    assert workflow.planned("--config", "ablations=[eps_high_0.28]")["train_cell"] == 33 + 4
    variant = "results/tiny/cells/sat-grpo+eps_high_0.28/lag8/seed0/run.json"
    assert workflow.jobs("train_cell", variant) == [variant]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--config", "objective={tis: {cup: 3}}"], ["objective.tis.cup", "did you mean 'objective.tis.cap'"]),
        (["--config", "preset=large"], ["unknown preset 'large'"]),
        (["results/tiny/cells/grop/lag1/seed0/run.json"], ["unknown method 'grop'", "did you mean 'grpo'"]),
        (["results/tiny/cells/grpo/lag7/seed0/run.json"], ["unknown lag '7'"]),
    ],
)
def test_mistakes_end_before_anything_is_planned(tmp_path, arguments, parts):
    text = Workflow(tmp_path, {}).snakemake("-n", *arguments, check=False)
    for part in parts:
        assert part in text


def test_everything_is_made(finished):
    results = finished.folder / "results" / "tiny"
    for name in ("table1.md", "table1.csv", "table1.tex", "diff.md", "diff.json", "report.html", "figures/figure2.svg"):
        assert (results / name).stat().st_size > 100, name
    run = json.loads((results / "cells" / "sat-gspo-r3" / "lag8-15" / "seed0" / "run.json").read_text())
    assert run["steps"] == 8 and run["nonfinite_steps"] == [] and run["resumed_at"] == []
    assert set(run["retained_weights"]) == {"best", "last"} and run["retained_weights"]["last"]["version"] == 8
    scores = pd.read_parquet(results / "cells" / "grpo" / "lag1" / "seed0" / "scores.parquet")
    assert scores.groupby("checkpoint").size().to_dict() == {"best": 12, "last": 12}


def test_the_docs_draw_the_rules_as_snakemake_does(tmp_path):
    page = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    assert before(page.split("```mermaid")[1].split("```")[0]) == before(
        Workflow(tmp_path, {}).snakemake("--rulegraph", "mermaid-js")
    )


def before(mermaid: str) -> dict[str, set[str]]:
    """Of every rule in a Mermaid flow chart: all rules that come before it."""
    names = dict(re.findall(r"(\bid\d+)\[(\w+)\]", mermaid))
    found: dict[str, set[str]] = {}
    for line in mermaid.splitlines():
        groups = [group.split("&") for group in re.sub(r"\[.*?\]", "", line).split("-->")]
        for sources, targets in itertools.pairwise(groups):
            for source, target in itertools.product(sources, targets):
                one, other = (names.get(name.strip(), name.strip()) for name in (source, target))
                found.setdefault(other, set()).add(one)
                found.setdefault(one, set())
    for middle in found:  # Warshall's closure: what comes before what comes before
        for rule, earlier in found.items():
            if middle in earlier:
                found[rule] = earlier | found[middle]
    return found


def test_snakemake_s_own_report_holds_the_results_with_their_captions(finished):
    finished.snakemake("--report", "workflow.html")
    page = (finished.folder / "workflow.html").read_text(encoding="utf-8")
    for text in (
        "what the adaptive trust region does at the larger lag",
        "results/tiny/figures/figure4.svg",
        "results/tiny/table1.csv",
    ):
        assert text.lower() in page.lower(), text


def test_touching_nothing_reruns_nothing(finished):
    assert finished.planned() == {}


def test_a_cell_whose_files_were_removed_is_made_again(finished, tmp_path):
    cell = finished.folder / "results/tiny/cells/dppo/lag1/seed0"
    shutil.move(cell, tmp_path / "dppo")
    try:
        assert finished.planned() == {"train_cell": 1, "score_cell": 1, **ASSEMBLY}
    finally:
        shutil.rmtree(cell, ignore_errors=True)
        shutil.move(tmp_path / "dppo", cell)
    assert finished.planned() == {}


def test_a_forced_cell_reruns_alone_with_what_depends_on_it(finished):
    target = "results/tiny/cells/dppo/lag1/seed0/run.json"
    assert finished.planned("--forcerun", target) == {"train_cell": 1, "score_cell": 1, **ASSEMBLY}
    assert finished.planned("--forcerun", "train_cell", "--", target) == {"train_cell": 1}


def test_a_methods_setting_reruns_only_its_cells(finished):
    try:
        arguments = ["--config", "objective={dppo: {delta: 0.15}}"]
        assert finished.planned(*arguments) == {"train_cell": 1, "score_cell": 1, **ASSEMBLY}
        assert finished.jobs("train_cell", *arguments) == ["results/tiny/cells/dppo/lag1/seed0/run.json"]
        more = finished.planned("--config", "seeds=2")
        assert more == {"train_cell": 3, "score_cell": 3, **ASSEMBLY}
        lower = finished.planned("--config", "rollout={temperature: 0.9}")
        assert lower == {"score_base": 1, "train_cell": 3, "score_cell": 3, "mismatch": 1, **ASSEMBLY}
    finally:
        assert finished.planned() == {}  # planning other settings has left nothing behind that a plain run would take up


def test_an_operational_setting_reruns_nothing_and_reaches_the_cells_that_run(finished):
    arguments = ["--config", "trainer={checkpoint_interval: 4}", "job={cpus: 3}", "rollout={overlap: false}"]
    assert finished.planned(*arguments) == {}
    target = "results/tiny/cells/dppo/lag1/seed0/run.json"
    first = json.loads((finished.folder / target).read_text())
    finished.snakemake("--forcerun", "train_cell", *arguments, "--", target)
    again = json.loads((finished.folder / target).read_text())
    assert (first["settings"]["trainer"]["checkpoint_interval"], again["settings"]["trainer"]["checkpoint_interval"]) == (2, 4)
    assert again["fingerprint"] == first["fingerprint"]
    digests = [run["retained_weights"]["last"]["sha256"] for run in (first, again)]
    assert digests[0] == digests[1]
    finished.snakemake()
    assert finished.planned(*arguments) == finished.planned() == {}


def settings_of(workflow: Workflow, method: str = "grpo", lag: str = "1") -> Path:
    """The settings file of a cell that has run: the one its fingerprinted state was made with."""
    record = json.loads((workflow.folder / f"results/tiny/cells/{method}/lag{lag}/seed0/run.json").read_text())
    return next(
        path.relative_to(workflow.folder)
        for path in (workflow.folder / f"state/tiny/settings/cells/{method}/lag{lag}").glob("seed0-*.json")
        if json.loads(path.read_text()) == record["settings"]
    )


def train(workflow: Workflow, name: str, method: str = "grpo", lag: str = "1") -> tuple[list[str], Path, Path]:
    """The command that rule train_cell runs, writing to folders of its own."""
    out, state = workflow.folder / "own" / name, workflow.folder / "own" / f"{name}-state"
    command = [*workflow.command()[:2], "pipeline", "train-cell", "--settings", str(settings_of(workflow, method, lag))]
    command += ["--problems", "results/tiny/problems"]
    return [*command, "--base-policy", "results/tiny/base_policy", "--state", str(state), "--out", str(out)], out, state


def run(workflow: Workflow, command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, cwd=workflow.folder, env=workflow.environment, capture_output=True, text=True, timeout=120, check=False, **options
    )


def rows(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "steps.parquet").drop(columns=["train_s", "generate_s", "wait_s", "publish_s"])


def test_kill_9_then_the_same_command_gives_the_uninterrupted_result(finished):
    command, out, state = train(finished, "killed")
    process = subprocess.Popen(
        command,
        cwd=finished.folder,
        env=finished.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(state.glob("*/checkpoints/step_*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "run.json").exists()
    again = run(finished, command)
    assert again.returncode == 0, again.stderr
    record = json.loads((out / "run.json").read_text())
    assert record["resumed_at"] and record["resumed_at"][0] in (2, 4, 6, 8)
    expected = finished.folder / "results" / "tiny" / "cells" / "grpo" / "lag1" / "seed0"
    pd.testing.assert_frame_equal(rows(out), rows(expected), check_exact=True)
    pd.testing.assert_frame_equal(pd.read_parquet(out / "evals.parquet"), pd.read_parquet(expected / "evals.parquet"))


def test_a_planned_stop_ends_with_status_75_and_the_same_command_continues(finished):
    command, out, state = train(finished, "stopped")
    process = subprocess.Popen(command, cwd=finished.folder, env=finished.environment, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(state.glob("*/checkpoints/step_*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGUSR1)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and "SIGUSR1: the cell stops at the next checkpoint" in shown
    assert not list(state.glob("lease.json")) and run(finished, command).returncode == 0
    pd.testing.assert_frame_equal(rows(out), rows(finished.folder / "results/tiny/cells/grpo/lag1/seed0"), check_exact=True)


def test_ctrl_c_says_that_the_same_command_continues_and_leaves_no_engine(finished):
    command, _, state = train(finished, "interrupted")
    process = subprocess.Popen(
        command, cwd=finished.folder, env=finished.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(state.glob("*/checkpoints/step_*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None and process.wait(60) == 130
    assert process.stderr.read() == "interrupted; the same command continues from the last checkpoint\n"
    deadline = time.monotonic() + 20
    with pytest.raises(ProcessLookupError):  # soon nobody is left in the group: engine and graders have gone with the trainer
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    assert run(finished, command).returncode == 0


def test_finished_state_is_written_again_or_when_forced_set_aside(finished):
    """A job that Snakemake lost track of costs nothing; a forced one starts at step 0 and keeps the old state."""
    command, out, state = train(finished, "forced")
    assert run(finished, command).returncode == 0
    first = json.loads((out / "run.json").read_text())
    (out / "steps.parquet").unlink()
    time.sleep(0.01)
    assert run(finished, command).returncode == 0
    again = json.loads((out / "run.json").read_text())
    assert again == first and (out / "steps.parquet").exists()
    assert [path.name for path in state.iterdir() if path.is_dir()] == [first["fingerprint"]]
    finished.environment_extra["PIPELINE_RETRAIN"] = "1"
    try:
        assert run(finished, command).returncode == 0
    finally:
        finished.environment_extra.clear()
    forced = json.loads((out / "run.json").read_text())
    assert forced["resumed_at"] == [] and forced["fingerprint"] == first["fingerprint"]
    assert forced["retained_weights"]["last"]["sha256"] == first["retained_weights"]["last"]["sha256"]
    kept = sorted(path.name for path in state.iterdir() if path.is_dir())
    assert kept == [first["fingerprint"], first["fingerprint"] + ".replaced-1"]


def test_forcing_a_cell_retrains_it_and_asking_to_retrain_changes_no_plan(finished):
    target = "results/tiny/cells/dppo/lag1/seed0/run.json"
    finished.snakemake("--forcerun", "train_cell", "--", target)
    record = json.loads((finished.folder / target).read_text())
    state = finished.folder / "state/tiny/cells/dppo/lag1/seed0"
    assert record["resumed_at"] == [] and (state / f"{record['fingerprint']}.replaced-1").is_dir()
    finished.snakemake()
    assert "train_cell" not in finished.planned("--config", "retrain=true")


def test_a_full_disk_ends_in_an_error_and_the_next_run_continues(finished):
    """The kernel refuses writes beyond a size limit as it does on a full disk: the checkpoint is cut off half-way."""
    import resource

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    command, out, _ = train(finished, "full")
    failed = run(finished, command, preexec_fn=small_files)
    assert failed.returncode == 1 and "error:" in failed.stderr and not (out / "run.json").exists()
    assert run(finished, command).returncode == 0
    pd.testing.assert_frame_equal(rows(out), rows(finished.folder / "results/tiny/cells/grpo/lag1/seed0"), check_exact=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "results/tiny/problems/train.parquet").write_bytes(b"PAR1 half"), "train.parquet"),
        (lambda f: (f / "results/tiny/base_policy/model.safetensors").write_bytes(b"\x10"), "model.safetensors"),
        (lambda f: [p.unlink() for p in f.glob("state/tiny/settings/cells/grpo/lag1/*.json")], "json does not exist"),
    ],
)
def test_unreadable_inputs_are_named(finished, tmp_path, damage, message):
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    copy = Workflow.__new__(Workflow)
    copy.folder, copy.environment_extra = tmp_path / "copy", {}
    command = train(copy, "damaged")[0]
    damage(copy.folder)
    failed = run(copy, command)
    assert failed.returncode == 1 and failed.stderr.startswith("error:") and message in failed.stderr
    assert "Traceback" not in failed.stderr


def test_scoring_without_its_weights_says_so(finished, tmp_path):
    record = json.loads((finished.folder / "results/tiny/cells/grpo/lag1/seed0/run.json").read_text())
    record["retained_weights"]["best"]["path"] = "state/nowhere.safetensors"
    (tmp_path / "run.json").write_text(json.dumps(record))
    command = [
        *finished.command()[:2],
        "pipeline",
        "score-cell",
        "--run",
        str(tmp_path / "run.json"),
        "--problems",
        "results/tiny/problems",
    ]
    failed = run(finished, [*command, "--base-policy", "results/tiny/base_policy", "--out", str(tmp_path / "scores.parquet")])
    assert failed.returncode == 1 and "are gone; retrain the cell" in failed.stderr


def test_micro_settings_are_valid():
    assert MICRO["trainer"]["steps"] % 8 == 0
