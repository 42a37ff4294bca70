"""The command line: `python -m pipeline STAGE ...`. The rules of the Snakefile call these stages; people may too.

Each command imports what it needs when it runs, so that --help and the light stages start at once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline import config, sections
from pipeline.artifacts import Layout

if TYPE_CHECKING:
    from pipeline.results.runs import Results

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

SettingsFile = Annotated[Path, typer.Option("--settings", help="The stage's resolved settings, written by snakemake.")]
RunSettings = Annotated[
    Path | None, typer.Option("--settings", help="The run's resolved settings; without it those of --preset, as planned last.")
]
Present = Annotated[Path | None, typer.Option(help="The run's resolved settings, to read timeouts and machines from.")]
Preset = Annotated[str, typer.Option(help="Whose run, where --settings is not given.")]
Problems = Annotated[Path, typer.Option(help="Folder with train.parquet, evaluation.parquet and scoring.parquet.")]
BasePolicy = Annotated[Path, typer.Option(help="Folder of the base policy, as Hugging Face lays it out.")]
Out = Annotated[Path, typer.Option(help="Where the results go.")]


@app.command()
def prepare(settings: SettingsFile, out: Out) -> None:
    """Make the training, evaluation and scoring problems and their manifest."""
    from pipeline.problems.prepare import as_lines
    from pipeline.problems.prepare import prepare as run

    for line in as_lines(run(config.read_problem_settings(settings), out)):
        print(line)


@app.command()
def base_policy(settings: SettingsFile, problems: Problems, out: Out) -> None:
    """Build the base policy by a supervised warm start (model.path null), or fetch and check the published one."""
    read = config.read_settings(sections.BasePolicySettings, settings)
    if read.model.path is None:
        from pipeline.policy.warm_start import warm_start

        warm_start(problems, read.warm_start, read.model, read.warm_start.seed, out)
    else:
        from pipeline.policy.fetch import fetch_policy

        fetch_policy(read.model, out)


@app.command()
def score_base(settings: SettingsFile, problems: Problems, base_policy: BasePolicy, out: Out, present: Present = None) -> None:
    """Score the base policy on the held-out problems."""
    from pipeline.evaluation.score import score_base as run

    run(config.read_cell_settings(settings, present), problems, base_policy, out)


@app.command()
def train_cell(
    settings: SettingsFile,
    problems: Problems,
    base_policy: BasePolicy,
    state: Annotated[Path, typer.Option(help="Folder for checkpoints and retained weights of this cell.")],
    out: Out,
    present: Present = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", envvar="PIPELINE_RETRAIN", help="Set finished state aside and start at step 0.")
    ] = False,
) -> None:
    """Train one cell by asynchronous RL; continues from its last checkpoint, or writes a finished cell's results again."""
    from pipeline.cell.job import train_cell as run

    cell = config.read_cell_settings(settings, present)
    run(cell, problems, base_policy, state, out, retrain)


@app.command()
def score_cell(
    run: Annotated[Path, typer.Option(help="run.json of a finished cell.")],
    problems: Problems,
    base_policy: BasePolicy,
    out: Out,
    aime24: Annotated[Path | None, typer.Option(help="Where scores on AIME 2024 go too; with rollout.engine sglang.")] = None,
    present: Present = None,
) -> None:
    """Score the best and the last weights of a finished cell with fresh samples; with SGLang, through lm-eval."""
    from pipeline.evaluation.score import score_cell as score

    score(run, problems, base_policy, out, aime24, present)


@app.command()
def mismatch(settings: SettingsFile, problems: Problems, base_policy: BasePolicy, out: Out, present: Present = None) -> None:
    """Measure where mismatch comes from at equal weights: kernels, precision, routing."""
    from pipeline.evaluation.mismatch import measure_mismatch

    measure_mismatch(config.read_cell_settings(settings, present), problems, base_policy, out)


@app.command()
def assemble(settings: RunSettings = None, preset: Preset = "tiny") -> None:
    """All of collect, table1, figures, diff and report in one process, from whatever cells there are."""
    from pipeline.paper.stages import assemble as run

    resolved = _run_settings(settings, preset)
    run(Layout(resolved.preset), resolved)


@app.command()
def collect(settings: RunSettings = None, preset: Preset = "tiny") -> None:
    """Read every cell there is, once: cells.parquet and cells.csv with a row each, collected/ with what the other stages read.

    Missing and unreadable cells are listed.
    """
    from pipeline.results.collect import collect_stage
    from pipeline.results.collected import write_collected
    from pipeline.results.runs import read_results

    resolved = _run_settings(settings, preset)
    layout = Layout(resolved.preset)
    results = read_results(layout, resolved)
    collect_stage(results, layout.results / "cells.parquet", layout.results / "cells.csv")
    write_collected(results, layout.collected)


@app.command()
def table1(settings: RunSettings = None, preset: Preset = "tiny") -> None:
    """Write Table 1 as Markdown, CSV and LaTeX."""
    from pipeline.paper.table1 import table1_stage

    results, folder = _results(settings, preset)
    table1_stage(results, folder / "cells.parquet", *(folder / f"table1.{kind}" for kind in ("md", "csv", "tex")))


@app.command()
def glance(table: Annotated[Path, typer.Argument(help="table1.csv of a run, e.g. results/tiny-reference/table1.csv.")]) -> None:
    """Print the results at a glance, in Markdown: every method's accuracy and mismatch at each lag."""
    from pipeline.results.glance import glance as read

    for line in read(table):
        print(line)


@app.command()
def figures(settings: RunSettings = None, preset: Preset = "tiny") -> None:
    """Draw every figure as PNG and SVG, with the plotted data as CSV."""
    from pipeline.paper.figures import finish_drawing, start_drawing

    results, folder = _results(settings, preset)
    finish_drawing(start_drawing(results, folder / "figures"))


@app.command()
def diff(
    settings: RunSettings = None,
    preset: Preset = "tiny",
    fail_on: Annotated[list[str], typer.Option(help="End with status 1 if a cell or claim has this verdict: not-reproduced.")] = [],  # noqa: B006
) -> None:
    """Compare the run with the paper, cell by cell and claim by claim."""
    from pipeline.paper.diff import diff_exit_status, diff_stage

    results, folder = _results(settings, preset)
    markdown, csv, json = (folder / f"diff.{kind}" for kind in ("md", "csv", "json"))
    diff_stage(results, folder / "cells.parquet", markdown, csv, json)
    if fail_on:
        raise typer.Exit(diff_exit_status(json, fail_on))


@app.command()
def report(settings: RunSettings = None, preset: Preset = "tiny") -> None:
    """Write report.html, one self-contained page, and report.md."""
    from pipeline.paper.report import report_stage

    results, folder = _results(settings, preset)
    pages = folder / "report.html", folder / "report.md"
    report_stage(results, folder / "cells.parquet", folder / "diff.json", folder / "figures", *pages)


@app.command()
def sources(settings: RunSettings = None, preset: Preset = "tiny") -> None:
    """Print where mismatch comes from: the measured levels, and what precision, routing and lag add."""
    from rich.console import Console
    from rich.table import Table

    from pipeline.paper.table1 import FORM
    from pipeline.results.collect import read_summary
    from pipeline.results.decomposition import read_levels, view
    from pipeline.results.table import rows_of

    results, folder = _results(settings, preset)
    shown = view(
        read_levels(folder / "mismatch.json"),
        rows_of(results, read_summary(folder / "cells.parquet"), FORM),
        results.settings.rollout.dtype,
    )
    levels, causes = Table(*shown["head"], title="mean |log pi - log mu|"), Table("Cause", "Adds", "Which is")
    for table, rows in ((levels, shown["rows"]), (causes, shown["causes"])):
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else 150).print(table)


@app.command()
def columns() -> None:
    """Print docs/columns.md: every column of the tables that a cell leaves, with its unit and meaning."""
    from pipeline.cell.columns_page import page

    print(page(), end="")


@app.command()
def audit(out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("docs/audit.md")) -> None:
    """Write what the published table and curves say by arithmetic alone; reads results/reference and no run."""
    from pipeline.paper.audit.page import audit_stage

    audit_stage(out)


@app.command()
def grade(
    file: Annotated[Path, typer.Argument(help="JSON lines, each {response, gold}.")],
    policy: Annotated[
        Literal["primemath", "strict"], typer.Option(help="primemath (reward and scores) or strict (second opinion).")
    ] = "primemath",
) -> None:
    """Grade a file of responses: one {outcome, extracted, rule, seconds} a line, in order."""
    from pipeline.grading.grade import grade_file

    grade_file(file, policy)


@app.command()
def protocols(
    folder: Annotated[Path, typer.Argument(help="Results folder of a cell (evals.parquet, scores.parquet) or the base policy.")],
    protocol: Annotated[list[str], typer.Option(help="avg@8, 4xavg@16 (mean of four runs of 16), pass@8, maj@8; repeatable.")] = [],  # noqa: B006
) -> None:
    """Recompute evaluation protocols from a cell's per-sample rows, by both grading policies."""
    from pipeline.evaluation.protocols import EvaluationProtocol
    from pipeline.evaluation.summary import as_lines, summarise_folder

    for line in as_lines(summarise_folder(folder, [EvaluationProtocol.parse(name) for name in protocol])):
        print(line)


def _run_settings(settings: Path | None, preset: str) -> config.Settings:
    """The settings of a run: those named, else those of the run of `preset` that was planned last, else config.yaml's."""
    planned = settings or Layout(preset).settings("run")
    if settings is None and not planned.exists():
        return config.load_settings(overrides={"preset": preset})
    return config.read_settings(config.Settings, planned)


def _results(settings: Path | None, preset: str) -> tuple[Results, Path]:
    """The cells of a run as `collect` read them, and the folder of its results."""
    from pipeline.results.collected import read_collected

    resolved = _run_settings(settings, preset)
    layout = Layout(resolved.preset)
    return read_collected(layout.collected, resolved), layout.results


@app.command()
def plan_processes(
    settings: Annotated[Path, typer.Option("--settings", help="Resolved settings of a cell, below state/<preset>/settings/cells.")],
    base_policy: Annotated[Path | None, typer.Option(help="Folder of the base policy, if not that of the preset.")] = None,
    present: Present = None,
) -> None:
    """Print which process of a cell starts on which node and GPUs, with which command line; starts nothing."""
    from pipeline.cell.process_plan import as_lines, planned_hosts, process_plan

    cell = config.read_cell_settings(settings, present)
    hosts = planned_hosts(cell.cluster.num_nodes if cell.cluster else 1)
    for line in as_lines(process_plan(cell, base_policy or Layout(cell.preset).base_policy, hosts)):
        print(line)


@app.command()
def plan(
    preset: Annotated[str | None, typer.Option(help="A preset of config.yaml; config.yaml's own if not given.")] = None,
    settings: Annotated[Path | None, typer.Option(help="Resolved settings of a run, e.g. state/full/settings/run.json.")] = None,
    gpu: Annotated[str, typer.Option(help="A100, H100, H200, H20 or GB200: what the cluster's GPUs are.")] = "H100",
    response_tokens: Annotated[str | None, typer.Option(help="Mean response length where it is known: 3000 or 2000-4000.")] = None,
    signal_lead: Annotated[
        float | None, typer.Option(help="Seconds from a job's signal to its limit; job.signal_lead_s if not given.")
    ] = None,
    measured: Annotated[bool, typer.Option("--measured", help="Calibrate on the preset's finished cells.")] = False,
) -> None:
    """Say before anything is launched what every cell takes: lags, tokens, GPU-hours, wall time, memory, disk."""
    from rich.console import Console

    from pipeline.planning.bounds import Bounds
    from pipeline.planning.plan import PlanOptions, plan_stage

    if settings is not None:
        run = config.read_settings(config.Settings, settings)
    else:
        run = config.load_settings(overrides={"preset": preset} if preset else None)
    tokens = Bounds.parse(response_tokens) if response_tokens else None
    lead = run.job.signal_lead_s if signal_lead is None else signal_lead
    options = PlanOptions(gpu, tokens, lead, measured)
    plan_stage(run, Layout(run.preset), options, Console(width=None if sys.stdout.isatty() else 220))


@app.command()
def status(preset: Annotated[str, typer.Option(help="Which preset's cells to show.")] = "tiny") -> None:
    """Show the state of every cell: step, reward, mismatch, last evaluation, lag, time spent and left."""
    from rich.console import Console

    from pipeline.cell.status import show_status

    show_status(preset, Console(width=None if sys.stdout.isatty() else 120))


@app.command()
def watch(preset: Annotated[str, typer.Option(help="Which preset's cells to show.")] = "tiny") -> None:
    """Show the table of `status`, live, until every cell is finished; once where the output is not a terminal."""
    from pipeline.cell.watch import watch as show

    if sys.stdout.isatty():
        show(preset)
    else:
        status(preset)


@app.command()
def doctor(
    preset: Annotated[str, typer.Option(help="The preset whose cells this node is to run.")] = "full",
    smoke: Annotated[bool, typer.Option("--smoke", help="Also train two steps of a tiny policy through its engines.")] = False,
) -> None:
    """Check a node (versions, GPUs, file systems, ports, memory, inputs) and say what to mend; status 1 if anything failed."""
    from rich.console import Console
    from rich.table import Table

    from pipeline.doctor.node import examine
    from pipeline.doctor.smoke import smoke_test

    settings = config.load_settings(overrides={"preset": preset})
    table, colours = Table("check", "", "found", "what to do"), {"ok": "green", "warning": "yellow", "failed": "red"}
    findings = examine(settings, Layout(preset)) + (smoke_test(settings) if smoke else [])
    for finding in findings:
        table.add_row(finding.check, f"[{colours[finding.status]}]{finding.status}[/]", finding.found, finding.remedy)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    raise typer.Exit(any(finding.status == "failed" for finding in findings))


def main() -> None:
    """Run a command; a user's error ends in one line that says what to do (PIPELINE_TRACEBACK=1 shows where it came from)."""
    from pipeline.processes.errors import USER_ERRORS

    signal.signal(signal.SIGINT, _interrupted)
    try:
        app()
    except USER_ERRORS as error:
        if os.environ.get("PIPELINE_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _interrupted(*_: object) -> None:
    print("interrupted; the same command continues from the last checkpoint", file=sys.stderr)
    sys.exit(130)  # unwinds the stack, so that engines are closed


if __name__ == "__main__":
    main()
