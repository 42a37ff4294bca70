"""Problems of kind dapo_dolci: two published data sets for training, AIME24 for evaluation and scoring, every drop accounted for.

The order of the steps is the order of the manifest's drops: repeats of a prompt within a source, prompts that no template can take,
the same prompt in an earlier source, near duplicates, prompts that give away an evaluation problem, prompts that are too long.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pandas infers unions here that no annotation narrows
from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tokenizers

from pipeline.problems.aime24 import Aime24, read_aime24
from pipeline.problems.chat import read_chat_template, read_stop_tokens
from pipeline.problems.decontaminate import contaminated
from pipeline.problems.duplicates import answer_key, exact_key, near_duplicates
from pipeline.problems.hub import Files, fetch
from pipeline.problems.sources import Source, read_source
from pipeline.problems.template import instruct, refusal
from pipeline.records import Problem
from pipeline.section import SettingsError
from pipeline.sections import PublishedProblemSettings, PublishedSettings

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json", "chat_template.jinja")
REPEAT = "repeat of the same prompt"
EXCERPT = 120  # characters of a prompt that the manifest shows


@dataclass
class Ledger:
    """What happened to the prompts: drops[source][reason] and the lists behind them, as the manifest shows them."""

    drops: dict[str, Counter[str]] = field(default_factory=dict)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    contaminated: list[dict[str, Any]] = field(default_factory=list)

    def keep(self, pool: pd.DataFrame, reasons: pd.Series) -> pd.DataFrame:
        """The rows of `pool` without a reason to go; the others are counted under their source and reason."""
        gone = reasons.dropna()
        for source, reason in zip(pool.loc[gone.index, "source"], gone, strict=True):
            self.drops.setdefault(source, Counter())[reason] += 1
        return pool.drop(index=gone.index).reset_index(drop=True)

    def conflict(self, kept: pd.Series, other: pd.Series, outcome: str) -> None:
        """Two rows of one problem whose answers differ."""
        sides = [{"source": side["source"], "row": int(side["row"]), "answer": side["answer"]} for side in (kept, other)]
        self.conflicts.append({"prompt": kept["prompt"][:EXCERPT], "rows": sides, "outcome": outcome})


def published_problems(settings: PublishedProblemSettings, record: Path) -> tuple[dict[str, list[Problem]], dict[str, Any]]:
    """The problems of each split, and what the manifest says beyond files and settings.

    record: as in hub.fetch.
    """
    published = settings.published
    held_out = read_aime24(published.aime24, record)
    for name, count in (("evaluation_count", settings.evaluation_count), ("scoring_count", settings.scoring_count)):
        if count != len(held_out.problems):
            raise SettingsError(f"problems.{name} is {count}, but AIME24 has {len(held_out.problems)} problems; set it to that")
    tokenizer = published.tokenizer
    policy = None if tokenizer is None else fetch("published.tokenizer", tokenizer, TOKENIZER_FILES, "model", record)
    dress = _dress(published, policy)
    sources = [
        read_source("dapo", published.dapo, published.dapo.form, record),
        read_source("dolci", published.dolci, published.dolci.form, record),
    ]
    ledger = Ledger()
    pool = _distinct_prompts(sources, ledger)
    pool = ledger.keep(pool, pool["prompt"].map(refusal))
    pool = _without_duplicates(pool, published, ledger)
    pool = _decontaminated(pool, held_out, published.decontamination_threshold, ledger)
    pool["prompt"] = [dress(prompt) for prompt in pool["prompt"]]
    pool = _short_enough(pool, policy, published.max_prompt_tokens, ledger)
    kept = Counter(pool["source"])
    train = _problems(pool, settings.seed)[: settings.train_count]
    evaluation = [Problem(p.id, p.source, dress(p.prompt), p.answer) for p in held_out.problems]
    splits = {"train": train, "evaluation": evaluation, "scoring": evaluation}
    return splits, _details(settings, sources, held_out, policy, kept, ledger)


def _distinct_prompts(sources: Iterable[Source], ledger: Ledger) -> pd.DataFrame:
    """One row for each distinct prompt text of each source, the earliest; columns source, row, prompt, answer, key, distinct."""
    parts = []
    for source in sources:
        table = source.distinct.assign(source=source.name, key=[exact_key(prompt) for prompt in source.distinct["prompt"]])
        first = ~table.duplicated("key")
        kept = table[first].reset_index(drop=True)
        ledger.drops.setdefault(source.name, Counter())[REPEAT] = source.rows - len(kept)
        _report_conflicts(table[first], table[~first], ledger)
        parts.append(kept)
    return pd.concat(parts, ignore_index=True)


def _report_conflicts(kept: pd.DataFrame, others: pd.DataFrame, ledger: Ledger) -> None:
    owners = kept.set_index("key", drop=False)
    for _, other in others.iterrows():
        owner = owners.loc[other["key"]]
        if answer_key(owner["answer"]) != answer_key(other["answer"]):
            ledger.conflict(owner, other, "same prompt: the first answer is kept")


def _without_duplicates(pool: pd.DataFrame, published: PublishedSettings, ledger: Ledger) -> pd.DataFrame:
    """The pool without prompts of an earlier source and without near duplicates, as the settings say."""
    across = published.duplicates_across_sources == "drop"
    if across:
        repeated = pool.duplicated("key")
        _report_conflicts(pool[~repeated], pool[repeated], ledger)
        owner = pool.drop_duplicates("key").set_index("key")["source"]
        pool = ledger.keep(pool, "same prompt as in " + pool.loc[repeated, "key"].map(owner))
    if published.near_duplicate_threshold is None:
        return pool
    reasons: dict[int, str] = {}
    for group in [pool] if across else [part for _, part in pool.groupby("source", sort=False)]:
        for match in near_duplicates(group["prompt"].tolist(), group["answer"].tolist(), published.near_duplicate_threshold):
            kept, other = group.iloc[match.of], group.iloc[match.index]
            if match.conflict:
                ledger.conflict(kept, other, f"{match.rule} ({match.similarity:.2f}): both are kept")
            else:
                reasons[other.name] = f"near duplicate of a prompt in {kept['source']}: {match.rule}"
    return ledger.keep(pool, pd.Series(reasons, dtype=object))


def _decontaminated(pool: pd.DataFrame, held_out: Aime24, threshold: float, ledger: Ledger) -> pd.DataFrame:
    reasons = {}
    for case in contaminated(pool["prompt"].tolist(), pool["answer"].tolist(), held_out.problems, threshold):
        row = pool.iloc[case.index]
        reasons[case.index] = f"gives away AIME24: {case.rule}"
        ledger.contaminated.append(
            {
                "source": row["source"],
                "row": int(row["row"]),
                "problem": case.problem,
                "rule": case.rule,
                "overlap": case.overlap,
                "prompt": row["prompt"][:EXCERPT],
            }
        )
    return ledger.keep(pool, pd.Series(reasons, dtype=object))


def _dress(published: PublishedSettings, policy: Files | None) -> Callable[[str], str]:
    """Bare problem -> the text that engines encode: the instruction, then the policy's chat template."""
    if not published.chat_template:
        return lambda problem: instruct(problem, published.instruction)
    assert policy is not None  # PublishedSettings refuses chat_template without a tokenizer
    render = read_chat_template(policy.folder)
    return lambda problem: render(instruct(problem, published.instruction))


def _short_enough(pool: pd.DataFrame, policy: Files | None, limit: int | None, ledger: Ledger) -> pd.DataFrame:
    """The pool without prompts of more than `limit` tokens."""
    if limit is None:
        return pool
    assert policy is not None
    encodings = tokenizers.Tokenizer.from_file(str(policy.folder / "tokenizer.json")).encode_batch_fast(
        pool["prompt"].tolist(), add_special_tokens=False
    )
    long = np.fromiter((len(encoding) > limit for encoding in encodings), bool, len(pool))
    return ledger.keep(pool, pd.Series(f"longer than {limit} tokens", index=pool.index[long], dtype=object))


def _problems(pool: pd.DataFrame, seed: int) -> list[Problem]:
    """The problems, shuffled: ids are hashes of the prompt, and the order depends on them and on the seed alone."""
    ids = [f"{s}-{hashlib.sha256(key.encode()).hexdigest()[:12]}" for s, key in zip(pool["source"], pool["key"], strict=True)]
    ordered = pool.assign(id=ids).sort_values("id")
    assert ordered["id"].is_unique
    ordered = ordered.iloc[np.random.Generator(np.random.PCG64(seed)).permutation(len(ordered))]
    return [Problem(*row) for row in ordered[["id", "source", "prompt", "answer"]].itertuples(index=False, name=None)]


def _details(
    settings: PublishedProblemSettings,
    sources: list[Source],
    held_out: Aime24,
    policy: Files | None,
    kept: Counter[str],
    ledger: Ledger,
) -> dict[str, Any]:
    """What the manifest says: provenance, counts, and the lists of the ledger."""
    return {
        "sources": {source.name: source.files.provenance() for source in sources} | {"aime24": dict(held_out.provenance)},
        "policy": None if policy is None else policy.provenance() | _stops(policy),
        "counts": _counts(settings, sources, kept, ledger),
        "contaminated": ledger.contaminated,
        "conflicting_answers": ledger.conflicts,
    }


def _counts(
    settings: PublishedProblemSettings, sources: list[Source], kept: Counter[str], ledger: Ledger
) -> dict[str, dict[str, Any]]:
    """The counts beside the paper's; every difference is the sum of the reasons beside it."""
    counts: dict[str, dict[str, Any]] = {}
    reasons: Counter[str] = Counter()
    papers = {"dapo": settings.published.dapo.paper_count, "dolci": settings.published.dolci.paper_count}
    for source in sources:
        drops, paper = ledger.drops[source.name], papers[source.name]
        distinct = source.rows - drops[REPEAT]
        counts[source.name] = {"rows": source.rows, "distinct": distinct, "paper": paper, "difference": distinct - paper}
        counts[source.name] |= {"drops": dict(drops), "kept": kept[source.name]}
        assert source.rows - sum(drops.values()) == kept[source.name]
        if distinct != paper:
            reasons[f"{source.name} holds {distinct} distinct prompts, the paper's {paper}"] = distinct - paper
        reasons.update({f"{source.name}: {name}": -count for name, count in drops.items() if name != REPEAT})
    total, paper = sum(kept.values()), sum(papers.values())
    used = min(total, settings.train_count)
    if used < total:
        reasons["beyond problems.train_count"] = used - total
    assert used - paper == sum(reasons.values())
    return counts | {"train": {"kept": used, "paper": paper, "difference": used - paper, "reasons": dict(reasons)}}


def _stops(policy: Files) -> dict[str, Any]:
    stop = read_stop_tokens(policy.folder, tokenizers.Tokenizer.from_file(str(policy.folder / "tokenizer.json")))
    return {"stop_token_ids": list(stop.ids), "conflicting_stop_tokens": list(stop.conflicts)}
