"""docs/audit.md: the published numbers laid beside each other, every statement with the arithmetic that shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.artifacts import REFERENCE, write_text
from pipeline.config import load_settings
from pipeline.evaluation.power import expected_maximum
from pipeline.paper.audit.granularity import chance_of_one, fit, numerator, smallest_common
from pipeline.paper.audit.protocol import (
    CLOSE,
    COMMON_STEPS,
    PaperProtocol,
    closeness,
    impossible_steps,
    labelled_batches,
    mismatch_coverage,
    overlaps,
    protocols_share,
    score_curves,
)
from pipeline.paper.audit.resolution import (
    DIFFICULTY,
    SEED_SPREADS,
    TRUE_DIFFERENCES,
    inflation,
    noises,
    plateau_noise,
    resolution,
    sat_gaps,
)  # fmt: skip
from pipeline.paper.lags import SMALL
from pipeline.paper.reference import Reference, read_reference
from pipeline.results.frames import column
from pipeline.results.markdown import table
from pipeline.sections import RolloutSettings

DIVERGED = 0.1  # mismatch: ten times the level at which the published runs settle


def audit_stage(out: Path, reference_folder: Path = REFERENCE, config: Path = Path("config.yaml")) -> str:
    """Write the audit page to `out` and return it; `config` says how many responses a step of the paper's run has."""
    text = render(read_reference(reference_folder), load_settings(config, {"preset": "full"}).rollout)
    write_text(out, text)
    return text


def render(reference: Reference, rollout: RolloutSettings) -> str:
    """The page as Markdown; depends on the reference files and the paper's batch alone."""
    protocol = PaperProtocol.of(reference)
    sections = (
        _introduction(reference),
        _granularity(reference, protocol),
        _steps(reference, protocol),
        _figure_3(reference),
        _maximum(reference, protocol),
        _resolution(reference, protocol),
        _reach(reference),
        _alike(reference),
        _batch(reference, rollout),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _introduction(reference: Reference) -> list[str]:
    paper = reference.claims["paper"]
    return [
        "# Audit of the published table",
        "",
        f"What Table 1 and the published curves of arXiv {paper['arxiv']} say by arithmetic alone, before anything is trained. "
        "Written by `python -m pipeline audit` (or `snakemake audit`) from `results/reference/table1.csv` and `curves.csv` and "
        "the paper's batch in `config.yaml`. "
        "None of this decides whether a claim of the paper is true: it says how finely its numbers can be read, and what a "
        "reproduction may be compared with.",
    ]


def _granularity(reference: Reference, protocol: PaperProtocol) -> list[str]:
    values = [float(value) for value in reference.table["aime24"]]
    problems, samples, runs = protocol.problems, protocol.samples, protocol.runs_averaged
    common = smallest_common(values, problems)
    origins = {8: "avg@8, one evaluation", samples: "one evaluation", samples * runs: f"mean of {runs} evaluations"}
    if common is not None:
        origins.setdefault(common, "smallest count that fits every value")
    grids = [fit(values, problems * k, f"{problems} problems x {k} responses: {text}") for k, text in sorted(origins.items())]
    one = [numerator(value, problems * samples) is not None for value in values]
    shares = protocols_share(reference, one)
    families = "; ".join(
        f"{name} {shares[name, True]} of {shares[name, True] + shares[name, False]}" for name in ("SAT", "DPPO", "baselines")
    )
    columns = (8, samples, samples * runs, *([common] if common is not None and common not in (8, samples, samples * runs) else []))
    rows = [
        [row["label"], row["lag"], f"{row['aime24']:.2f}", *(_fraction(row["aime24"], problems * k) for k in columns)]
        for row in reference.table.to_dict("records")
    ]
    last = values[-1]
    example = 100 * (numerator(last, problems * samples) or 0) / (problems * samples)
    return [
        "## Which counts of responses can print each value",
        "",
        f"An accuracy over n graded responses is a multiple of 1/n. With two decimals about n of the 10,000 values can be printed, "
        f"so one value fits 1/n by accident with a chance of about n/10,000: {chance_of_one(problems * samples):.1%} for n = "
        f"{problems * samples}. For example "
        f"{last:.2f} fits, as {100} x {numerator(last, problems * samples)}/{problems * samples} = {example:.3f}.",
        "",
        *table(
            ["n", "as", "values that fit", "by accident, so many or more"],
            [[str(g.n), g.origin, f"{g.fitting} of {g.values}", f"{g.chance:.1g}"] for g in grids],
        ),
        "",
        f"Values that fit one evaluation of {problems} x {samples}, by family: {families}. The others fit neither one "
        f"evaluation nor "
        f"the mean of {runs}; so the cells may have been scored by more than one protocol, and a difference of two cells can "
        f"be one "
        "of protocols.",
        "",
        *table(["Method", "Lag", "AIME24, %", *(f"k / {problems * k}" for k in columns)], rows),
    ]


def _steps(reference: Reference, protocol: PaperProtocol) -> list[str]:
    steps, wrong = protocol.evaluated(), impossible_steps(reference, protocol)
    example = int(reference.table["best_step"].iloc[0])
    found = "All of them are evaluated steps" if not wrong else f"Not evaluated by this rule: {', '.join(map(str, wrong))}"
    return [
        "## Best steps",
        "",
        f"Every {protocol.interval} of {protocol.steps} optimizer steps, counted from 0, evaluates after steps {steps[0]}, "
        f"{steps[1]}, "
        f"{steps[2]}, ..., {steps[-1]}: {len(steps)} evaluations. A best step s must then satisfy s mod {protocol.interval} = "
        f"{steps[0] % protocol.interval}; {example} = {protocol.interval} x {example // protocol.interval} + "
        f"{example % protocol.interval}. "
        f"{found} ({len(reference.table) - len(wrong)} of {len(reference.table)}).",
        "",
        f"Where weights are published every 8 steps the rollout engine holds {protocol.versions(8)} different versions at these "
        f"{len(steps)} points (at lag 1: {protocol.versions(1)}), if the engine's weights are what is evaluated.",
    ]


def _figure_3(reference: Reference) -> list[str]:
    curves = score_curves(reference)
    lines = []
    for row in curves.to_dict("records"):
        there = "no point there" if row["there"] is None else f"{row['there']:.2f} at step {row['table_step']}"
        lines.append([
            f"{row['label']}, lag {row['lag']}", f"{row['table']:.2f} at step {row['table_step']}", there,
            f"{row['maximum']:.2f} at step {row['maximum_step']}", f"{row['table'] - row['maximum']:+.2f}",
        ])  # fmt: skip
    return [
        "## Figure 3 beside Table 1",
        "",
        "Both show the evaluations of GSPO; Table 1 prints the best one. Points of the curves are read to about 0.01.",
        "",
        *table(["Run", "Table 1", "curve at that step", "curve's maximum", "table − maximum"], lines),
        "",
        "A table that took its values from these curves would show 0 in the last column. The two may come from different runs or "
        "different numbers of samples.",
    ]


def _maximum(reference: Reference, protocol: PaperProtocol) -> list[str]:
    count = len(protocol.evaluated())
    counts = (count // 2, protocol.versions(8), count)
    rows = [
        [noise.name, f"{noise.fixed:.2f}", *(f"{inflation(noise.fixed, m):.2f}" for m in counts)]
        for noise in noises(protocol.problems, protocol.samples, protocol.runs_averaged)
    ]
    for row in score_curves(reference).to_dict("records"):
        if row["lag"] == SMALL:
            sd = plateau_noise(reference.curve(row["figure"], _method(reference, row["label"]), row["lag"], "aime24"))
            rows.append(
                [f"read off Figure 3: {row['label']}, lag {row['lag']}", f"{sd:.2f}", *(f"{inflation(sd, m):.2f}" for m in counts)]
            )
    return [
        "## The best of many evaluations",
        "",
        f"If m evaluations share one true accuracy and each adds independent normal noise of standard deviation s, the largest "
        f"exceeds "
        f"the truth by s x E(m) on average, E(m) the expected maximum of m standard normal numbers: E({counts[0]}) = "
        f"{expected_maximum(counts[0]):.2f}, E({counts[1]}) = {expected_maximum(counts[1]):.2f}, E({count}) = "
        f"{expected_maximum(count):.2f}. {count} evaluations are taken, {counts[1]} of them of "
        f"different weights at lag 8. A curve that rises has fewer evaluations near its top: half of them ({counts[0]}) is "
        f"given too.",
        "",
        *table(["score", "noise s, points", *(f"inflation, m = {m}" for m in counts)], rows),
        "",
        f"Noise of the first rows: sampling error on {protocol.problems} fixed problems, chances of a correct response Beta "
        f"distributed with mean {DIFFICULTY.mean:.0%} and a + b = {DIFFICULTY.concentration} (assumed: many problems are "
        f"almost never or "
        "almost always solved). Last row: neighbouring points of the second half, standard deviation of differences / sqrt(2).",
    ]


def _resolution(reference: Reference, protocol: PaperProtocol) -> list[str]:
    protocols = noises(protocol.problems, protocol.samples, protocol.runs_averaged)
    found = [resolution(noise, spread) for spread in SEED_SPREADS for noise in protocols]
    rows = [
        [
            item.noise.name,
            f"{item.seed_spread:g}",
            f"{item.error:.2f}",
            f"{item.smallest:.1f}",
            *(f"{value:.2f}" for value in item.powers),
        ]
        for item in found
    ]
    gaps = sat_gaps(reference)
    differences = column(gaps, "gap")
    smallest = {item.noise.name: item.smallest for item in found if item.seed_spread == 0}
    exceed = "; ".join(
        f"{int((differences.abs() >= value).sum())} of {len(gaps)} at {name} ({value:.1f})" for name, value in smallest.items()
    )
    return [
        "## What a difference of two cells can show",
        "",
        "One training run a side, scored on the same problems: standard error of the difference = sqrt(2) x sqrt(s² + r²), s the "
        "sampling error of a score, r the spread between training seeds (the paper has one seed, so r is not known). Smallest "
        "difference: found with chance 0.8 by a two-sided 5 % test, (1.96 + 0.84) x error. Power: the chance of finding a "
        "true difference.",
        "",
        *table(["score", "r", "error", "smallest difference", *(f"power at {true:g}" for true in TRUE_DIFFERENCES)], rows),
        "",
        f"A statement about problems of this kind rather than these {protocol.problems} also carries the problems' own spread: "
        f"the error "
        f"of a single score is then {', '.join(f'{noise.total:.1f} ({noise.name})' for noise in protocols)} points.",
        "",
        *table(
            ["Table 1, SAT and its base", "lag", "difference"],
            [[r["label"], r["lag"], f"{r['gap']:+.2f}"] for r in gaps.to_dict("records")],
        ),
        "",
        f"{int((differences > 0).sum())} of {len(gaps)} are positive, mean {differences.mean():+.2f}; a sign test on "
        f"{len(gaps)} pairs gives "
        f"p = {2 * 0.5 ** len(gaps):.3f} if the pairs were independent runs. As large as the smallest difference (no spread "
        f"between seeds): {exceed}.",
    ]


def _reach(reference: Reference) -> list[str]:
    coverage = mismatch_coverage(reference)
    rows = [
        [row["label"], row["lag"], str(row["best_step"]), "none" if np.isnan(row["last_step"]) else f"{row['last_step']:.0f}",
         "no" if row["last_step"] < row["best_step"] else "yes", f"{row['mismatch']:.4f}", f"{row['largest']:.4f}"]
        for row in coverage.to_dict("records")
    ]  # fmt: skip
    short = coverage[coverage["last_step"] < coverage["best_step"]]
    high = coverage[(coverage["largest"] > DIVERGED) & ~coverage["later_collapse"]]
    return [
        "## How far the published mismatch curves reach",
        "",
        f"{len(short)} of {len(coverage)} cells have no published mismatch as late as their best step, so that Table 1's mean "
        f"over the last "
        f"epoch cannot be recomputed from the curves. {len(high)} cells that the table marks without collapse have a published "
        f"run that "
        f"exceeds {DIVERGED} ({', '.join(f'{label} lag {lag}' for label, lag in zip(high['label'], high['lag'], strict=True))}): "
        "for them the curve and the row may be different runs.",
        "",
        *table(
            ["Method", "Lag", "best step", "last published step", "curve reaches it", "mismatch, table", "largest, curves"], rows
        ),
    ]


def _alike(reference: Reference) -> list[str]:
    shared = [[pair.first, pair.second, f"{pair.points} of {pair.common}"] for pair in overlaps(reference)]
    pairs = closeness(reference)
    close = [
        [pair.first, pair.second, f"{pair.median:.2%}", f"{pair.within} of {pair.common}"] for pair in pairs if pair.median < CLOSE
    ]
    return [
        "## Published mismatch curves that are alike",
        "",
        "Runs of different cells that share points exactly:",
        "",
        *table(["run", "run", "equal points of the common steps"], shared),
        "",
        f"Of {len(pairs)} other pairs of runs of different cells at one lag with at least {COMMON_STEPS} common steps, these are "
        f"closer than {CLOSE:.0%}: median over the common steps of |log(a/b)|. In the middle one of all pairs it is "
        f"{np.median([pair.median for pair in pairs]):.0%}.",
        "",
        *table(["run a", "run b", "median difference", "steps within 1 %"], close),
        "",
        "Equal points at all common steps are one series under two names. Close ones can come from runs with a common start and "
        "the same order of the data, or from one run that was read off twice; the curves alone do not tell.",
        "",
        "The curves are therefore drawn beneath ours and compared by shape (`diff.md`), never used as a target.",
    ]


def _batch(reference: Reference, rollout: RolloutSettings) -> list[str]:
    stated = rollout.prompts_per_step * rollout.group_size
    lines = [
        f"- {cell}, run `{run}`, in {_figures(reference, run)}: {stated:,} / {labelled:,} = {stated / labelled:g}"
        for cell, run, labelled in labelled_batches(reference)
    ]
    return [
        "## Batches in the labels of published runs",
        "",
        f"The paper states {rollout.prompts_per_step} prompts x {rollout.group_size} responses = {stated:,} responses an optimizer "
        "step (App. F; `rollout` in `config.yaml`). Where the label of a published run names a batch (`gbs`), the stated "
        "one over it:",
        "",
        *lines,
        "",
        "If the label is right, that curve has another batch than the runs it stands beside, and a smaller one is noisier.",
    ]


def _figures(reference: Reference, run: str) -> str:
    figures = reference.curves.loc[reference.curves["run"] == run, "figure"].unique()
    return ", ".join("the project page" if name == "page" else f"Figure {name}" for name in figures)


def _fraction(value: float, n: int) -> str:
    k = numerator(value, n)
    return "–" if k is None else str(k)


def _method(reference: Reference, label: str) -> str:
    return str(reference.table.loc[reference.table["label"] == label, "method"].iloc[0])
