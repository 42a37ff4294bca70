"""Reproduction of "Stale but Stable" (arXiv 2607.18722): asynchronous RL with staleness-adaptive trust regions.

One algorithm, two sets of engines. Data flows in the order of these modules, each an arrow of the DAG in the Snakefile:

    problems/    problems as parquet, held-out ones apart           rule prepare
    policy/      the Qwen3-MoE, its tokenizer, its warm start       rule base_policy
    rollout/     engines, the schedule, graded batches              rule train_cell, with
    grading/       what a response is worth
    objective/     the 13 methods as one loss body
    trainer/       one optimizer step
    cell/          one cell's life; cell/loop.py is the paper's algorithm box
    evaluation/  scores of published versions                       rules score_base, score_cell
    results/     cells read, summarised, tabled, contrasted         rule collect
    paper/       Table 1, Figures 2 to 5, claims, diff, report      rules table1, figures, diff, report
      audit/       what the published numbers say by arithmetic     rule audit

Below them, records.py holds what crosses the arrows, published_weights.py the versions of the weights, artifacts.py where it all
lies on disk, sections.py and config.py what can be set; processes/ starts and ends what runs beside a cell, engines.py chooses it.
planning/ says beforehand what cells take, doctor/ whether a node can run them, dag.py what the Snakefile asks. No room imports one
above it: tests/unit/test_rooms.py lists their order.
"""
