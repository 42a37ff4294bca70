"""Verdicts: the rules as written, on planted worlds whose truth is known, and on made-up findings."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipeline.artifacts import Cell
from pipeline.evaluation.estimators import Interval
from pipeline.objective.methods import TABLE_1
from pipeline.paper.claims import KEYS, evaluate, evaluate_claims, judge
from pipeline.paper.comparison import compare_cell, same
from pipeline.paper.diff import diff_exit_status
from pipeline.paper.evidence import STATISTICS, Context, Evidence, Side, cycle_contrasts, decide, find, pairs_of
from pipeline.paper.presets import PRESETS
from pipeline.paper.reference import read_reference
from pipeline.paper.table1 import FORM
from pipeline.paper.verdicts import VERDICTS, weakest
from pipeline.results.collect import summarise
from pipeline.results.runs import read_results
from pipeline.results.table import rows_of
from tests.unit import synthetic_results as synthetic

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
CLAIMS = yaml.safe_load((REFERENCE / "claims.yaml").read_text(encoding="utf-8"))["claims"]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory) -> dict:
    """The claims on three seeds of 33 cells: gspo@8, grpo@8 and grpo-uncorrected@8-15 collapse, a dppo@8 is missing."""
    collapsed = {("grpo-uncorrected", "8-15"): 110, ("gspo", "8"): 150, ("grpo", "8"): 140}
    world = synthetic.World(collapsed, missing=[Cell("dppo", "8", 1)], seed_sd=0.0)
    made = synthetic.write_run(tmp_path_factory.mktemp("claims"), world, {"seeds": 3})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.root)
        results = read_results(made.layout, made.settings)
        return {claim.id: claim for claim in evaluate_claims(results, read_reference())}


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("mismatch-sawtooth", "reproduced"),
        ("r3-lowers-mismatch-lag1", "reproduced"),
        ("r3-lowers-mismatch-lag8", "reproduced"),  # although two bases collapse: only healthy steps are compared
        ("baselines-collapse-lag8", "reproduced"),
        ("baselines-degrade-lag8", "reproduced"),
        ("sat-finishes", "reproduced"),
        ("sat-prevents-collapse", "reproduced"),
        ("sat-raises-accuracy", "reproduced"),
        ("tis-finishes", "reproduced"),
        ("gate-share-bounded", "reproduced"),
        ("training-helps", "reproduced"),
        ("uncorrected-collapses", "reproduced"),
        ("corrected-do-not-collapse", "reproduced"),
        ("correction-raises-accuracy", "reproduced"),
        ("lag-raises-mismatch", "inconclusive"),  # one seed of one cell of 26 is missing
    ],
)
def test_a_planted_effect_is_found(verdicts, claim, verdict):
    assert verdicts[claim].verdict == verdict, verdicts[claim].reason


def test_a_missing_cell_is_named_in_the_evidence(verdicts):
    assert [(item.name, item.text) for item in verdicts["lag-raises-mismatch"].evidence if item.finding == "missing"] == [
        ("DPPO, lag 8 / DPPO, lag 1", "DPPO, lag 8: seed 1 not read")
    ]
    assert verdicts["lag-raises-mismatch"].reason == "12 of 13 support, 1 missing"
    (absent,) = {item.text for item in verdicts["dppo-between"].evidence if item.finding == "missing"}
    assert absent == "DPPO, lag 8: seed 1 not scored"


def test_runs_that_are_left_decide_nothing(tmp_path, monkeypatch):
    """Three seeds configured, one GRPO run read, which did not collapse: no verdict against the claim that GRPO collapses."""
    world = synthetic.World({}, missing=[Cell("grpo", "8", 0), Cell("grpo", "8", 2)])
    made = synthetic.write_run(tmp_path, world, {"seeds": 3, **synthetic.cells(["grpo", "gspo", "sat-grpo"], ["8"])})
    monkeypatch.chdir(tmp_path)
    found = {claim.id: claim for claim in evaluate_claims(read_results(made.layout, made.settings), read_reference())}
    grpo, gspo = found["baselines-collapse-lag8"].evidence
    assert (grpo.finding, grpo.text) == ("missing", "GRPO, lag 8: seeds 0, 2 not read")
    assert (gspo.finding, gspo.text) == ("contradicts", "0 of 3 [0 %, 71 %] collapsed")
    assert found["baselines-degrade-lag8"].evidence[0].finding == found["sat-prevents-collapse"].evidence[0].finding == "missing"
    assert found["sat-raises-accuracy"].verdict == "not-testable"


def test_one_seed_decides_what_lies_within_a_run_only(tmp_path, monkeypatch):
    """The same planted world by one seed each: numbers, but no verdict on cells that are compared."""
    overrides = synthetic.cells(["grpo", "gspo", "sat-grpo", "sat-gspo", "sat-grpo-r3", "sat-gspo-r3"], ["1", "8"])
    made = synthetic.write_run(tmp_path, synthetic.World({("gspo", "8"): 150, ("grpo", "8"): 140}, seed_sd=0.0), overrides)
    monkeypatch.chdir(tmp_path)
    results = read_results(made.layout, made.settings)
    found = {claim.id: claim for claim in evaluate_claims(results, read_reference())}
    assert {found[name].verdict for name in ("gate-share-bounded", "mismatch-sawtooth")} == {"reproduced"}
    for name in (
        "baselines-collapse-lag8",
        "baselines-degrade-lag8",
        "sat-finishes",
        "sat-prevents-collapse",
        "sat-keeps-mean-mismatch",
    ):
        assert found[name].verdict == "inconclusive" and found[name].power is None
        assert "with one seed: run-to-run spread is unknown" in found[name].reason
        assert all(item.text for item in found[name].evidence)
    full = dataclasses.replace(results, settings=results.settings.model_copy(update={"preset": "full"}))
    assert "the paper's values are single runs too" in evaluate_claims(full, read_reference())[0].reason


def test_the_paper_s_side_of_a_mean_counts_its_comparisons(tmp_path, monkeypatch):
    """With and without cells: 8 bases and lags for SAT, 4 for TIS; the mean itself is not one of them."""
    made = synthetic.write_run(tmp_path, synthetic.World({}), synthetic.cells(["grpo", "sat-grpo"], ["8"]))
    monkeypatch.chdir(tmp_path)
    results = read_results(made.layout, made.settings)
    for read in (results, dataclasses.replace(results, runs={})):
        found = {claim.id: claim.paper_side for claim in evaluate_claims(read, read_reference())}
        assert (found["sat-raises-accuracy"], found["tis-below-sat"]) == ("8 of 8", "4 of 4")


def test_the_paper_supports_its_own_claims(verdicts):
    """The side that the paper's Table 1 shows, from the committed numbers."""
    assert verdicts["sat-gspo-r3-first"].paper_side == "24 of 24"
    assert verdicts["baselines-collapse-lag8"].paper_side == "2 of 2"
    assert verdicts["r3-lowers-mismatch-lag8"].paper_side == "4 of 6"


def test_the_opposite_world_is_not_reproduced(tmp_path, monkeypatch):
    """The uncorrected baseline stays up and a SAT cell falls: three claims must say so."""
    overrides = {"seeds": 2, "cells": {"table": {"methods": ["grpo", "sat-grpo"], "lags": ["8"]}}}
    overrides["cells"] |= {name: {"methods": [], "lags": []} for name in ("ablations", "figure1")}
    world = synthetic.World({("sat-grpo", "8"): 100, ("grpo", "8"): 100}, seed_sd=0.0)
    made = synthetic.write_run(tmp_path, world, overrides)
    monkeypatch.chdir(tmp_path)
    found = {claim.id: claim for claim in evaluate_claims(read_results(made.layout, made.settings), read_reference())}
    for name in ("sat-finishes", "uncorrected-collapses", "sat-prevents-collapse"):
        assert found[name].verdict == "not-reproduced", (name, found[name].reason)
    assert found["dppo-between"].verdict == "not-testable"


def test_preset_stress_tells_what_prevents_a_collapse_apart(tmp_path, monkeypatch):
    """Both uncorrected baselines fall at lags 8-15; SAT and TIS hold but for GSPO's TIS, the fixed limits of GSPO fall as well."""
    methods = ["grpo", "gspo", "grpo-tis", "gspo-tis", "sat-grpo", "sat-gspo"]
    overrides = {"preset": "stress", "seeds": 2, "cells": {"table": {"methods": methods}, "stress": {"methods": []}}}
    fallen = ("grpo-uncorrected", "gspo-uncorrected", "gspo", "gspo-tis")
    world = synthetic.World({(method, "8-15"): 250 for method in fallen}, seed_sd=0.0)
    made = synthetic.write_run(tmp_path, world, overrides)
    monkeypatch.chdir(tmp_path)
    found = {claim.id: claim for claim in evaluate_claims(read_results(made.layout, made.settings), read_reference())}
    assert found["uncorrected-collapses"].verdict == found["uncorrected-lag1-healthy"].verdict == "reproduced"
    assert found["sat-prevents-collapse-lag8-15"].verdict == "reproduced"
    assert found["rollout-ratio-prevents-collapse-lag8-15"].verdict == "not-reproduced"
    assert found["tis-prevents-collapse-lag8-15"].verdict == "not-reproduced"
    assert found["no-row-collapses-lag8-15"].verdict == "not-reproduced"
    assert found["lag8-15-lowers-accuracy-uncorrected"].verdict == "reproduced"
    assert found["sat-prevents-collapse"].verdict == "not-testable"  # a claim of the paper stays in the list


def test_a_claim_of_our_own_is_listed_where_it_can_be_tested(verdicts):
    assert set(verdicts) == {claim["id"] for claim in CLAIMS if claim["origin"] == "paper" or "tiny" in claim["testable_in"]}
    assert "no-row-collapses-lag8-15" not in verdicts


def test_without_cells_nothing_is_testable(tmp_path, monkeypatch):
    made = synthetic.write_run(tmp_path, synthetic.World({}), synthetic.cells(["grpo"], ["1"]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / made.layout.cell(Cell("grpo", "1", 0)) / "run.json").unlink()
    assert {claim.verdict for claim in evaluate_claims(read_results(made.layout, made.settings), read_reference())} == {
        "not-testable"
    }


def test_claims_are_written_as_their_header_says():
    """Every rule names a known statistic and known cells, every id is used once, every preset exists."""
    assert len({claim["id"] for claim in CLAIMS}) == len(CLAIMS) >= 15
    for claim in CLAIMS:
        assert set(claim) == KEYS and claim["origin"] in ("paper", "project") and 0 < claim["require"] <= 1
        assert set(claim["testable_in"]) <= set(PRESETS)
        rule = claim["rule"]
        assert rule["statistic"] in STATISTICS
        sides = (
            [Side.parse(text, "last") for text in rule["cells"]]
            if "cells" in rule
            else [s for pair in pairs_of(rule) for s in pair]
        )
        assert sides


def test_first_expands_to_every_other_row_of_the_table():
    pairs = pairs_of({"first": "sat-gspo-r3", "lags": ["1", "8"], "checkpoint": "best"})
    assert len(pairs) == 2 * (len(TABLE_1) - 1)
    assert all(a.method == "sat-gspo-r3" and b.method != a.method and a.lag == b.lag for a, b in pairs)


@pytest.mark.parametrize("text", ["gpro@8", "grpo", "grpo@8:worst"])
def test_a_misspelt_cell_is_refused(text):
    with pytest.raises(ValueError, match="method@lag"):
        Side.parse(text, "last")


def test_an_unknown_key_or_statistic_is_refused(verdicts):
    context = Context(None, None, 0.95)
    with pytest.raises(ValueError, match="keys"):
        evaluate({"id": "x"}, context)
    with pytest.raises(ValueError, match="did you mean 'accuracy'"):
        evaluate(dict.fromkeys(KEYS, "") | {"id": "x", "rule": {"statistic": "acuracy"}}, context)


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 0.95, ("problems",))


@pytest.mark.parametrize(
    ("low", "high", "direction", "threshold", "finding"),
    [
        (0.01, 0.1, "above", 0.0, "supports"),
        (-0.1, -0.01, "above", 0.0, "contradicts"),
        (-0.1, 0.1, "above", 0.0, "undecided"),
        (0.5, 0.9, "below", 1.0, "supports"),
        (0.5, 0.9, "above", 0.4, "supports"),
        (0.0, 0.1, "above", 0.0, "undecided"),
        (math.nan, math.nan, "above", 0.0, "undecided"),
    ],
)
def test_only_a_whole_interval_decides(low, high, direction, threshold, finding):
    assert decide(interval(low, high), direction, threshold) == finding


def test_one_contradiction_among_many_must_be_a_strong_one():
    """An interval of half width z(level) below 0 by 2.2 standard errors contradicts alone, but not as one of 24."""
    from scipy.special import ndtri

    def make(level: float) -> Interval:
        half = float(ndtri(0.5 + level / 2))
        return Interval(-2.2, -2.2 - half, -2.2 + half, level, ("problems",))

    rule = {"direction": "above", "threshold": 0.0}
    assert find(make, rule, 0.95, 1)[1] == "contradicts"
    assert find(make, rule, 0.95, 24)[1] == "undecided"


@pytest.mark.parametrize(
    ("findings", "require", "verdict"),
    [
        ("sss", 1.0, "reproduced"),
        ("ssu", 1.0, "inconclusive"),
        ("ssc", 1.0, "not-reproduced"),
        ("ssm", 1.0, "inconclusive"),
        ("ssv", 1.0, "reproduced"),
        ("mmm", 1.0, "not-testable"),
        ("vmv", 1.0, "not-testable"),
        ("sssc", 0.75, "reproduced"),
        ("sscc", 0.75, "not-reproduced"),
        ("ssuc", 0.75, "inconclusive"),
    ],
)
def test_findings_add_up(findings, require, verdict):
    names = {"s": "supports", "u": "undecided", "c": "contradicts", "m": "missing", "v": "void"}
    assert judge([Evidence("", names[letter], "text") for letter in findings], require)[0] == verdict


def test_sawtooth_of_a_known_shape():
    """Mismatch proportional to the lag 1..8: late over early is the ratio of the geometric means of 5..8 and 1..4."""
    batches = np.arange(0, 33)
    lags = np.where(batches == 0, 1, (batches - 1) % 8 + 1)
    contrasts = cycle_contrasts(batches, 0.01 * lags, 8)
    assert contrasts == pytest.approx([np.log(5 * 6 * 7 * 8 / 24) / 4] * 4)
    assert cycle_contrasts(np.delete(batches, 5), np.delete(0.01 * lags, 5), 8) == pytest.approx(contrasts[1:])
    assert cycle_contrasts(batches, np.full(33, 0.2), 8) == pytest.approx([0.0] * 4)


def test_the_weakest_verdict_wins():
    assert weakest(["reproduced", "not-testable"]) == "reproduced"
    assert weakest(["reproduced", "inconclusive", "not-reproduced"]) == "not-reproduced"
    assert weakest(["not-testable"]) == weakest([]) == "not-testable"
    assert set(VERDICTS) == {weakest([verdict]) for verdict in VERDICTS}


def test_exit_status_by_verdict(tmp_path):
    path = tmp_path / "diff.json"
    path.write_text(
        '{"cells": [{"verdict": "inconclusive"}], "claims": [{"verdict": "reproduced"}, {"verdict": "not-reproduced"}]}'
    )
    assert diff_exit_status(path, ["not-reproduced"]) == 1
    assert diff_exit_status(path, ["inconclusive"]) == 1
    assert diff_exit_status(path, ["not-testable"]) == diff_exit_status(path, []) == 0
    with pytest.raises(ValueError, match="did you mean 'not-reproduced'"):
        diff_exit_status(path, ["not_reproduced"])
    with pytest.raises(ValueError, match="does not exist; run"):
        diff_exit_status(tmp_path / "absent.json", ["not-reproduced"])


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-2.0, 2.9, "reproduced"),
        (-2.0, 3.1, "inconclusive"),  # noisy: agrees with nothing
        (-12.0, 14.0, "inconclusive"),
        (0.5, 4.5, "inconclusive"),  # differs, but by less than the margin
        (-9.0, -1.0, "not-reproduced"),
        (math.nan, math.nan, "not-testable"),
    ],
)
def test_noise_cannot_make_a_run_agree(low, high, verdict):
    """Margin 3: agreement is the whole interval inside it, disagreement an interval without 0 around an estimate beyond it."""
    assert same(interval(low, high), 3.0) == verdict


def test_the_paper_s_own_preset_is_compared_at_its_very_problems(tmp_path, monkeypatch):
    """A run read as preset full: best evaluation minus the paper's, with the samples' noise of ours (30 x 8) and of the paper's
    mean of four runs of 30 x 16, 210 degrees of freedom; one seed decides, two missing ones prevent that.
    """
    made = synthetic.write_run(tmp_path, synthetic.World({}), synthetic.cells(["grpo"], ["1"]))
    monkeypatch.chdir(tmp_path)
    results, reference = read_results(made.layout, made.settings), read_reference()
    (row,) = rows_of(results, summarise(results), FORM)
    full = dataclasses.replace(results, settings=results.settings.model_copy(update={"preset": "full"}))
    found = compare_cell(row, full, reference)
    assert found.score.ours == pytest.approx(100 * row.best) and found.score.difference == pytest.approx(100 * row.best - 31.25)
    (run,) = results.runs.values()
    best = max(run.outcomes_by_version, key=lambda outcomes: outcomes.mean())
    half = 1.9713 * np.sqrt(best.var(axis=1, ddof=1).mean() * (1 / 240 + 1 / 1920))
    assert found.score.high - found.score.ours == pytest.approx(100 * half, rel=1e-3)
    assert found.score.verdict == "not-reproduced" and found.mismatch.ours == pytest.approx(row.mismatch)
    assert found.mismatch.low < row.mismatch < found.mismatch.high
    short = compare_cell(dataclasses.replace(row, seeds_expected=3), full, reference)
    assert {short.score.verdict, short.mismatch.verdict, short.collapse.verdict} == {"inconclusive"}
