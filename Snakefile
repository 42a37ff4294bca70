"""The reproduction as a DAG, in the order in which data flows. No logic: every rule calls `python -m pipeline`."""

import os
import sys

from pipeline.artifacts import COLLECTED, Cell, Layout
from pipeline.config import load_settings
from pipeline.dag import job_resources, refuse_other_presets, refuse_unnamed_preset, write_cell_settings, write_stage_settings

settings = load_settings(overrides=config)
paths = Layout(settings.preset)
cells = settings.all_cells()
refuse_other_presets(settings, sys.argv[1:])
stage = write_stage_settings(settings, paths, cells)
present = stage["present"]  # no input: timeouts and machines, which it says, are no reason to make a result again

pipeline = f"{sys.executable} -m pipeline"
CELL = f"{paths.results}/cells/{{method}}/lag{{lag}}/seed{{seed}}"
REFERENCE = expand("results/reference/{name}", name=["table1.csv", "curves.csv", "claims.yaml"])
FIGURES = ["figure2", "figure3", "figure4", "figure5", "stress_panel", "sat_panel", "lag_histogram"]
CAPTION = "pipeline/paper/captions/{}.rst".format
RUNS = expand(f"{paths.results}/cells/{{cell}}/run.json", cell=cells)
SCORES = expand(f"{paths.results}/cells/{{cell}}/scores.parquet", cell=cells)


report: CAPTION("workflow")


onstart:
    refuse_unnamed_preset(workflow.executor_plugin.name, config)
    # A forced cell starts over; in preset full only with retrain=true. Not a param: that would make Snakemake rerun finished cells.
    dag = workflow.dag_settings
    forced = bool(dag.forceall or dag.forcerun or dag.forcetargets)
    os.environ["PIPELINE_RETRAIN"] = "1" if forced and (settings.retrain or settings.preset != "full") else ""


wildcard_constraints:
    method="[a-z0-9-]+([+][a-z0-9_.-]+)?",
    lag="[0-9]+(-[0-9]+)?",
    seed="[0-9]+",


localrules:  # prepare and base_policy want the network, which a cluster's compute nodes may lack; the others take seconds
    reproduce,
    prepare,
    base_policy,
    audit,
    collect,
    table1,
    figures,
    diff,
    report,


rule reproduce:
    input:
        RUNS,  # listed, though the report needs them too: a cell whose files were removed is made again
        SCORES,
        paths.results / "report.html",
        paths.results / "table1.md",
        paths.results / "diff.md",
        expand(f"{paths.results}/figures/{{figure}}.png", figure=FIGURES),


rule prepare:
    input:
        stage["problems"],
    output:
        multiext(f"{paths.problems}/", "train.parquet", "evaluation.parquet", "scoring.parquet", "manifest.json"),
    shell:
        "{pipeline} prepare --settings {input} --out {paths.problems}"


rule base_policy:
    input:
        settings=stage["base_policy"],
        problems=rules.prepare.output,
    output:
        multiext(f"{paths.base_policy}/", "config.json", "manifest.json", "tokenizer.json", "generation_config.json"),
    threads: settings.warm_start.threads
    shell:
        "{pipeline} base-policy --settings {input.settings} --problems {paths.problems} --out {paths.base_policy}"


rule score_base:
    input:
        settings=stage["score_base"],
        problems=rules.prepare.output,
        policy=rules.base_policy.output,
    output:
        f"{paths.base_policy}/evals.parquet",
    resources:
        **job_resources(settings),
    shell:
        "{pipeline} score-base --settings {input.settings} --present {present} --problems {paths.problems} "
        "--base-policy {paths.base_policy} --out {output}"


rule train_cell:
    input:
        settings=lambda w: write_cell_settings(settings, paths, Cell(w.method, w.lag, int(w.seed))),
        problems=rules.prepare.output,
        policy=rules.base_policy.output,
    output:
        run=f"{CELL}/run.json",
        steps=f"{CELL}/steps.parquet",
        evals=f"{CELL}/evals.parquet",
    threads: settings.trainer.threads
    resources:
        **job_resources(settings),
    params:
        state=f"{paths.state}/cells/{{method}}/lag{{lag}}/seed{{seed}}",
    shell:
        "{pipeline} train-cell --settings {input.settings} --present {present} --problems {paths.problems} "
        "--base-policy {paths.base_policy} --state {params.state} --out $(dirname {output.run})"


rule score_cell:
    input:
        run=rules.train_cell.output.run,
        problems=rules.prepare.output,
    output:
        scores=f"{CELL}/scores.parquet",
        aime24=[f"{CELL}/aime24.parquet"] if settings.scores_aime24_too else [],
    resources:
        **job_resources(settings, num_nodes=1),
    params:
        aime24=lambda w, output: f"--aime24 {output.aime24}" if output.aime24 else "",
    shell:
        "{pipeline} score-cell --run {input.run} --present {present} --problems {paths.problems} "
        "--base-policy {paths.base_policy} --out {output.scores} {params.aime24}"


rule mismatch:
    input:
        settings=stage["mismatch"],
        problems=rules.prepare.output,
        policy=rules.base_policy.output,
    output:
        f"{paths.results}/mismatch.json",
    resources:
        **job_resources(settings),
    shell:
        "{pipeline} mismatch --settings {input.settings} --present {present} --problems {paths.problems} "
        "--base-policy {paths.base_policy} --out {output}"


rule collect:
    input:
        settings=stage["run"],
        runs=RUNS,
        scores=SCORES,
        base=rules.score_base.output,
    output:
        multiext(f"{paths.results}/cells", ".parquet", ".csv"),
        multiext(f"{paths.collected}/", *COLLECTED),
    shell:
        "{pipeline} collect --settings {present}"


rule table1:
    input:
        rules.collect.output,
        REFERENCE,
    output:
        multiext(f"{paths.results}/table1", ".md", ".tex"),
        report(f"{paths.results}/table1.csv", caption=CAPTION("table1"), category="Results"),
    shell:
        "{pipeline} table1 --settings {present}"


rule figures:
    input:
        rules.collect.output,
        REFERENCE,
    output:
        expand(f"{paths.results}/figures/{{figure}}.{{kind}}", figure=FIGURES, kind=["png", "csv"]),
        [report(f"{paths.results}/figures/{name}.svg", caption=CAPTION(name), category="Figures") for name in FIGURES],
    shell:
        "{pipeline} figures --settings {present}"


rule diff:
    input:
        rules.collect.output,
        REFERENCE,
    output:
        multiext(f"{paths.results}/diff", ".md", ".json"),
        report(f"{paths.results}/diff.csv", caption=CAPTION("diff"), category="Results"),
    shell:
        "{pipeline} diff --settings {present}"


rule report:
    input:
        rules.collect.output,
        rules.mismatch.output,
        rules.table1.output,
        rules.figures.output,
        rules.diff.output,
    output:
        report(f"{paths.results}/report.html", caption=CAPTION("report"), category="Results"),
        f"{paths.results}/report.md",
    shell:
        "{pipeline} report --settings {present}"


rule audit:
    input:
        REFERENCE,
        "config.yaml",
    output:
        "docs/audit.md",
    shell:
        "{pipeline} audit --out {output}"
