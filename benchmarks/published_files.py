"""Files in the published schemas of the four training sets, with made-up problems: for tests, and at full size for benchmarks.

    python -m benchmarks.published_files FOLDER [--dapo 17398] [--repeats 100] [--dolci 13314]

The traits that make the real files hard are here: nested columns, a new UUID in every repeat, Chinese prompts, negative and
four-digit answers, LaTeX answers, list-typed ground truth, one prompt with two answers, the same problems in both sets.
"""

from __future__ import annotations

import argparse
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
    "(without quotes) where $Answer is the answer to the problem.\n\n"
)
SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
CHINESE = 0.189  # share in DAPO-Math-17k
MESSAGES = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))
DAPO_SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", MESSAGES),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        ("extra_info", pa.struct([("index", pa.string())])),
    ]
)
SHAPES = (
    "triangle",
    "regular hexagon",
    "circle",
    "trapezoid",
    "tetrahedron",
    "parabola",
    "rhombus",
    "cube",
    "sphere",
    "lattice path",
)
TASKS = (
    "Find the number of ordered pairs of integers $(x, y)$ with $x^{a} + y^{b} = {c}$ that lie inside a {shape} of side ${d}$.",
    "A {shape} has side ${d}$ and height $\\frac{{a}}{{b}}$. Its area can be written as $m\\sqrt{n}$ with $n$ squarefree. "
    "Given that {c} unit squares are removed, find $m + n$.",
    "Let $f(x) = {a}x^3 - {b}x + {c}$. Determine the remainder when $f({d})$ is divided by the number of edges of a {shape}.",
    "{name} writes the integers from ${a}$ to ${c}$ on a board beside a drawing of a {shape} and erases every multiple of ${b}$. "
    "What is the sum of the digits that remain, modulo ${d}$?",
)
CHINESE_TASK = "设正整数$n$满足$n^{a}+{b}n={c}$，且以${d}$为边长的图形内有格点，求所有这样的$n$之和。"
NAMES = ("Aisha", "Bruno", "Chen", "Dmitri", "Elena", "Farid", "Gwen", "Hiro", "Ines", "Jomo")
FILLER = "Assume that all lengths are measured in centimetres and that every choice is equally likely. "


@dataclass(frozen=True)
class Made:
    """One made-up problem: the bare prompt and its answer."""

    prompt: str
    answer: str


def make_problems(count: int, seed: int, latex_share: float = 0.0) -> list[Made]:
    """`count` problems with distinct prompts; integer answers from -999 to 9999, a share of them in LaTeX instead."""
    rng, made = Random(seed), []
    for index in range(count):
        values = {"a": rng.randint(2, 40), "b": rng.randint(2, 99), "c": seed * 1_000_000 + index, "d": rng.randint(3, 500)}
        words = {"shape": rng.choice(SHAPES), "name": rng.choice(NAMES)}
        text = CHINESE_TASK if rng.random() < CHINESE else FILLER * rng.randint(0, 3) + rng.choice(TASKS)
        for name, value in {**values, **words}.items():
            text = text.replace("{" + name + "}", str(value))
        latex = f"\\frac{{{rng.randint(1, 99)}}}{{{rng.randint(2, 99)}}}"
        made.append(Made(text, latex if rng.random() < latex_share else str(rng.randint(-999, 9999))))
    return made


def write_dapo(path: Path, problems: list[Made], repeats: int, seed: int = 0, row_group: int = 100_000) -> int:
    """BytedTsinghua-SIA/DAPO-Math-17k: all problems `repeats` times, shuffled, each row under another UUID. Returns the rows."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(np.tile(np.arange(len(problems)), repeats))
    prompts = pa.array([PREFIX + problem.prompt + SUFFIX for problem in problems])
    answers = pa.array([problem.answer for problem in problems])
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, DAPO_SCHEMA) as writer:
        for start in range(0, len(order), row_group):
            writer.write_table(_dapo_rows(prompts, answers, order[start : start + row_group], start))
    return len(order)


def _dapo_rows(prompts: pa.Array, answers: pa.Array, order: np.ndarray, first: int) -> pa.Table:
    count = len(order)

    def same(text: str) -> pa.Array:
        return pa.repeat(text, count)

    message = pa.StructArray.from_arrays([prompts.take(pa.array(order)), same("user")], ["content", "role"])
    columns = [
        same("math_dapo"),
        pa.ListArray.from_arrays(pa.array(np.arange(count + 1), pa.int32()), message),
        same("MATH"),
        pa.StructArray.from_arrays([answers.take(pa.array(order)), same("rule-lighteval/MATH_v2")], ["ground_truth", "style"]),
        pa.StructArray.from_arrays([pa.array([str(uuid.UUID(int=first + row)) for row in range(count)])], ["index"]),
    ]
    return pa.Table.from_arrays(columns, schema=DAPO_SCHEMA)


def write_open_r1(path: Path, problems: list[Made]) -> None:
    """open-r1/DAPO-Math-17k-Processed: bare prompts, the answer as `solution`, the original prompt beside it."""
    rows = [
        {
            "prompt": problem.prompt,
            "solution": problem.answer,
            "data_source": "math_dapo",
            "source_prompt": [{"content": PREFIX + problem.prompt + SUFFIX, "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": problem.answer, "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": str(uuid.UUID(int=index))},
        }
        for index, problem in enumerate(problems)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_zhuzilin(path: Path, problems: list[Made]) -> None:
    """zhuzilin/dapo-math-17k: JSON lines of a conversation and a label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as handle:
        for problem in problems:
            conversation = [{"role": "user", "content": PREFIX + problem.prompt + SUFFIX}]
            handle.write(json.dumps({"prompt": conversation, "label": problem.answer}, ensure_ascii=False) + "\n")


def write_dolci(path: Path, problems: list[Made], listed: bool = True) -> None:
    """allenai/Dolci-RL-Zero-Math-7B: prompts that start with "user: ", ground truth as text or as a list of one."""
    rows = [
        {
            "prompt": f"user: {problem.prompt}",
            "messages": [{"content": problem.prompt, "role": "user"}],
            "ground_truth": [problem.answer] if listed else problem.answer,
            "dataset": "math",
        }
        for problem in problems
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def overlapping(dapo: list[Made], count: int, shared: float, seed: int) -> list[Made]:
    """A second set of `count` problems of which a share repeats the first: half of them exactly, half with other LaTeX spacing."""
    again = [dapo[index] for index in Random(seed).sample(range(len(dapo)), min(len(dapo), round(count * shared)))]
    respaced = [Made(m.prompt.replace("$", "$ ").replace(" with ", "  with "), m.answer) for m in again[len(again) // 2 :]]
    return [*again[: len(again) // 2], *respaced, *make_problems(count - len(again), seed + 1, latex_share=0.2)]


def write_full_size(folder: Path, dapo: int = 17_398, repeats: int = 100, dolci: int = 13_314, extra: int = 519) -> dict[str, Path]:
    """Both sets in their published sizes: (dapo + extra repeated texts) x repeats rows, and dolci rows, 75 % of them in both."""
    problems = make_problems(dapo, seed=1)
    paths = {"dapo": folder / "dapo/data/dapo-math-17k.parquet", "dolci": folder / "dolci/data/train-00000-of-00001.parquet"}
    write_dapo(paths["dapo"], [*problems, *problems[:extra]], repeats)
    write_dolci(paths["dolci"], overlapping(problems, dolci, shared=0.75, seed=2))
    return paths


def _main() -> Iterator[str]:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    for name, default in (("dapo", 17_398), ("repeats", 100), ("dolci", 13_314)):
        arguments.add_argument(f"--{name}", type=int, default=default)
    options = arguments.parse_args()
    for name, path in write_full_size(options.folder, options.dapo, options.repeats, options.dolci).items():
        yield f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB)"


if __name__ == "__main__":
    print("\n".join(_main()))
