"""DAPO, Dolci and AIME24 from files in the published schemas: every drop counted, every malformed file named."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import errors

from benchmarks.published_files import (
    CHINESE,
    PREFIX,
    SUFFIX,
    Made,
    make_problems,
    overlapping,
    write_dapo,
    write_dolci,
    write_open_r1,
    write_zhuzilin,
)
from pipeline.config import load_settings, read_problem_settings
from pipeline.problems.aime24 import COPY, IDS, read_aime24
from pipeline.problems.decontaminate import contaminated
from pipeline.problems.duplicates import near_duplicates
from pipeline.problems.prepare import as_lines, prepare, read_problems
from pipeline.problems.sources import normalise_answer, read_source
from pipeline.problems.template import INSTRUCTIONS, instruct, strip_templates
from pipeline.section import SettingsError
from pipeline.sections import PublishedProblemSettings, SourceSettings

AIME = read_aime24(None).problems


def stage(folder: Path, **published: object) -> PublishedProblemSettings:
    """Preset full on the files in `folder`, plain template."""
    local = {name: {"path": str(folder / name), "revision": None, "paper_count": 0} for name in ("dapo", "dolci")}
    plain = {"tokenizer": None, "chat_template": False, "max_prompt_tokens": None}
    settings = load_settings(overrides={"preset": "full", "published": {**local, **plain, **published}}).problem_stage()
    assert isinstance(settings, PublishedProblemSettings)
    return settings


def local(path: Path) -> SourceSettings:
    return SourceSettings(path=str(path), revision=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 problems 10 times; one of them with a second answer, one AIME problem; 100 others of which 60 overlap."""
    folder = tmp_path_factory.mktemp("published")
    problems = make_problems(200, seed=1)
    asked = Made(AIME[4].prompt.replace("$", "\\$"), AIME[4].answer)
    write_dapo(folder / "dapo/data/dapo-math-17k.parquet", [*problems, Made(problems[0].prompt, "77777"), asked], repeats=10)
    write_dolci(folder / "dolci/data/train-00000-of-00001.parquet", overlapping(problems, 100, shared=0.6, seed=2))
    return folder


def test_every_row_is_accounted_for(folder: Path, tmp_path: Path) -> None:
    prepare(stage(folder), tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    lines = as_lines(manifest)
    assert lines[:2] == [
        "30 problems for evaluation, 30 problems for scoring, 240 problems for train",
        "the paper trains on 0, difference +240",
    ]
    assert "  -1 dapo: gives away AIME24: same text" in lines and lines[-1].startswith(
        "  gives away 2024-I-5 (same text): dapo row "
    )
    dapo, dolci, train = (manifest["counts"][name] for name in ("dapo", "dolci", "train"))
    assert (dapo["rows"], dapo["distinct"], dapo["kept"]) == (2020, 201, 200)
    assert dapo["drops"] == {"repeat of the same prompt": 1819, "gives away AIME24: same text": 1}
    assert (dolci["rows"], dolci["distinct"]) == (100, 100)
    assert dolci["drops"]["same prompt as in dapo"] >= 30
    assert dolci["kept"] == 40 and train["kept"] == 240
    assert train["difference"] == 240 == sum(train["reasons"].values())
    assert [case["problem"] for case in manifest["contaminated"]] == ["2024-I-5"]
    conflict = next(c for c in manifest["conflicting_answers"] if "77777" in [row["answer"] for row in c["rows"]])
    assert conflict["outcome"] == "same prompt: the first answer is kept"
    assert manifest["sources"]["dapo"]["revision"] == "local" and len(manifest["sources"]["dapo"]["sha256"]) == 1
    problems = read_problems(tmp_path / "train.parquet")
    assert len({problem.prompt for problem in problems}) == len({problem.id for problem in problems}) == 240
    assert all(problem.prompt.startswith(PREFIX) and problem.prompt.endswith(SUFFIX) for problem in problems)
    assert all(problem.prompt.count("Remember to put") == 1 and "user:" not in problem.prompt for problem in problems)
    assert any(int(p.answer) < 0 for p in problems if p.source == "dapo") and any("\\frac" in p.answer for p in problems)


def test_the_papers_sum_keeps_duplicates_across_sources(folder: Path, tmp_path: Path) -> None:
    prepare(stage(folder, duplicates_across_sources="keep", near_duplicate_threshold=None), tmp_path)
    counts = json.loads((tmp_path / "manifest.json").read_text())["counts"]
    assert counts["train"]["kept"] == counts["dapo"]["distinct"] + counts["dolci"]["distinct"] - 1  # the AIME problem


def test_the_seed_alone_decides_the_order(folder: Path, tmp_path: Path) -> None:
    settings = stage(folder)
    for name, changed in (("same", {}), ("again", {}), ("other", {"seed": 18}), ("fewer", {"train_count": 50})):
        prepare(settings.model_copy(update=changed), tmp_path / name)
    read = {name: read_problems(tmp_path / name / "train.parquet") for name in ("same", "again", "other", "fewer")}
    assert read["same"] == read["again"] != read["other"]
    assert sorted(map(repr, read["same"])) == sorted(map(repr, read["other"]))
    assert read["fewer"] == read["same"][:50]
    manifest = json.loads((tmp_path / "fewer/manifest.json").read_text())
    assert manifest["files"]["train"]["drops"]["beyond problems.train_count"] == -190


def test_all_forms_of_a_source_give_the_same_problems(tmp_path: Path) -> None:
    problems = make_problems(60, seed=3)
    write_dapo(tmp_path / "dapo/data/x.parquet", problems, repeats=3)
    write_open_r1(tmp_path / "open_r1/all/x.parquet", problems)
    write_open_r1(tmp_path / "open_r1/en/x.parquet", problems[:5])  # another configuration of the same repository: not read
    write_zhuzilin(tmp_path / "zhuzilin/dapo-math-17k.jsonl", problems)
    write_dolci(tmp_path / "dolci/data/x.parquet", problems)
    write_dolci(tmp_path / "text/x.parquet", problems, listed=False)
    expected = {(problem.prompt, problem.answer) for problem in problems}
    for name, form in (("dapo", "dapo"), ("open_r1", "open_r1"), ("zhuzilin", "zhuzilin"), ("dolci", "dolci"), ("text", "dolci")):
        distinct = read_source(name, local(tmp_path / name), form).distinct
        assert set(zip(distinct["prompt"], distinct["answer"], strict=True)) == expected, name
        assert set(distinct["repeats"]) == {3 if name == "dapo" else 1}
    assert CHINESE / 2 < sum("设" in problem.prompt for problem in problems) / 60 < 2 * CHINESE


def dapo_table(prompt: object, answer: object) -> pa.Table:
    good = [{"prompt": [{"content": "1+1?", "role": "user"}], "reward_model": {"ground_truth": "2"}}] * 3
    return pa.Table.from_pylist([*good, {"prompt": prompt, "reward_model": {"ground_truth": answer}}])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"question": ["1+1?"], "reward_model": [{"ground_truth": "2"}]}), r"lacks the column prompt \(it has question"),
        (pa.table({"prompt": ["1+1?"], "reward_model": [{"gold": "2"}]}), r"lacks the column reward_model\.ground_truth"),
        (pa.table({"prompt": [1], "reward_model": [{"ground_truth": "2"}]}), "column prompt holds int64, not text"),
        (dapo_table([{"content": "2+2?", "role": "user"}], "  "), r"row 3 has an empty reward_model\.ground_truth"),
        (dapo_table([{"content": "2+2?", "role": "user"}], None), r"row 3 has an empty reward_model\.ground_truth"),
        (dapo_table([{"content": "", "role": "user"}], "4"), "row 3 has an empty prompt"),
        (dapo_table([{"content": PREFIX + SUFFIX, "role": "user"}], "4"), "row 3 has an empty prompt"),
        (dapo_table([{"content": "2+2?", "role": "system"}], "4"), "row 3 has 0 user messages"),
        (dapo_table([], "4"), "row 3 has 0 user messages"),
        (dapo_table(None, "4"), "row 3 has 0 user messages"),
        (dapo_table([{"content": "2+2?", "role": "user"}], "4").slice(0, 0), "holds zero rows"),
    ],
)
def test_malformed_files_are_refused_by_row_and_column(table: pa.Table, message: str, tmp_path: Path) -> None:
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=message):
        read_source("dapo", local(tmp_path), "dapo")


def test_a_row_is_counted_in_its_own_file(tmp_path: Path) -> None:
    for name, answer in (("a", "4"), ("b", " ")):
        pq.write_table(dapo_table([{"content": "2+2?", "role": "user"}], answer), tmp_path / f"{name}.parquet")
    with pytest.raises(ValueError, match=r"b\.parquet: row 3 has an empty reward_model"):
        read_source("dapo", local(tmp_path), "dapo")


def test_a_list_of_two_answers_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a", "b"], "ground_truth": [["1"], ["1", "2"]]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="ground_truth: row 1 holds 2 answers"):
        read_source("dolci", local(tmp_path), "dolci")


@pytest.mark.parametrize(
    ("source", "raised", "message"),
    [
        (SourceSettings(path="no/such/path/here", revision=None), None, "neither exists nor is a hub name"),
        (SourceSettings(path="owner/name", revision=None), None, r"published\.dapo\.revision is null"),
        (SourceSettings(path="owner/name", revision="0" * 40), errors.RevisionNotFoundError, "has no such revision"),
        (SourceSettings(path="owner/name", revision="main"), errors.RepositoryNotFoundError, "no such repository"),
        (
            SourceSettings(path="owner/name", revision="main"),
            errors.LocalEntryNotFoundError,
            "hub cannot be reached .* set published",
        ),
    ],
)
def test_what_the_hub_refuses_is_explained(source, raised, message, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise raised.__new__(raised)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ValueError, match=message):
        read_source("dapo", source, "dapo")


def test_the_hubs_commit_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / ("a" * 40)
    write_dapo(snapshot / "data/x.parquet", make_problems(3, seed=1), repeats=1)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: str(snapshot))
    for revision, pinned in (("main", False), ("a" * 40, True)):
        files = read_source("dapo", SourceSettings(path="owner/name", revision=revision), "dapo").files
        assert (files.provenance()["revision"], files.provenance()["pinned"]) == ("a" * 40, pinned)


def test_a_data_set_s_branch_stays_at_the_commit_it_had_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    write_dapo(tmp_path / ("a" * 40) / "data/x.parquet", make_problems(3, seed=1), repeats=1)

    def download(*_: object, revision: str, **__: object) -> str:
        asked.append(revision)
        return str(tmp_path / ("a" * 40))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source, record = SourceSettings(path="owner/name", revision="main"), tmp_path / "problems" / "revisions.json"
    first, again = (read_source("dapo", source, "dapo", record).files for _ in range(2))
    assert asked == ["main", "a" * 40] and first == again and not first.pinned
    read_source("dapo", source, "dapo")
    assert asked[2] == "main"  # nothing is kept where nobody asks for it


def test_templates_come_off_and_go_on_once() -> None:
    wrapped = [INSTRUCTIONS["answer_line"], INSTRUCTIONS["boxed"], "user: {problem}", "  {problem}\r\n"]
    bare = "Find $x$.\n\nThe last line is a {set}."
    assert strip_templates(pa.array([w.replace("{problem}", bare) for w in wrapped])).to_pylist() == [bare] * 4
    assert strip_templates(pa.array([instruct(bare, "answer_line")])).to_pylist() == [bare]
    with pytest.raises(ValueError, match="lacks the wording"):
        instruct("Solve the following math problem step by step. Then sing.", "none")


@pytest.mark.parametrize(
    ("answer", "normalised"),
    [(" 5 ", "5"), ('["5"]', "5"), ('["a","b"]', '["a","b"]'), ("$\\frac12$", "\\frac12"), ("$1$, $2$", "$1$, $2$"), ("-3", "-3")],
)
def test_answers_are_normalised(answer: str, normalised: str) -> None:
    assert normalise_answer(answer) == normalised


def test_near_duplicates_agree_in_numbers_and_answer() -> None:
    base = "Let $f(x)=3x^2+7$ be a polynomial. Find the remainder when $f(12)$ is divided by 5, and prove that it is unique."
    prompts = [
        base,
        base.replace("$", " $ "),
        base.replace("12", "13"),
        base.replace("Find", "Compute"),
        base.replace("unique", "one"),
    ]
    found = near_duplicates(prompts, ["4", "4", "4", "4", "9"], threshold=0.75)
    assert [(match.index, match.rule, match.conflict) for match in found] == [
        (1, "same skeleton", False),
        (3, "similar", False),
        (4, "similar", True),
    ]
    assert near_duplicates(["a+b=1", "a-b=1"], ["1", "1"], 0.9) == []


def test_contamination_is_found_by_text_passages_and_numbers() -> None:
    aya, hexagon = AIME[0], AIME[19]
    prompts = [
        aya.prompt.upper(),
        "Warm up: " + aya.prompt[: int(len(aya.prompt) * 0.8)] + " Good luck, and do not use a calculator.",
        "每天早上走" + "，".join(__import__("re").findall(r"\d+", aya.prompt)),
        "Aya walks $9$ kilometres every day. How far in a week?",
        hexagon.prompt.replace("convex", "plane"),
    ]
    found = contaminated(prompts, [aya.answer, "204", "204", "63", "80"], AIME, threshold=0.5)
    assert [(case.index, case.problem, case.rule) for case in found] == [
        (0, "2024-I-1", "same text"),
        (1, "2024-I-1", "shared passages"),
        (2, "2024-I-1", "same numbers and answer"),
        (4, "2024-II-5", "shared passages"),
    ]


def test_aime24_is_the_30_problems_under_stable_ids(tmp_path: Path) -> None:
    assert tuple(problem.id for problem in AIME) == IDS and len(set(IDS)) == 30
    assert all(0 <= int(problem.answer) <= 999 for problem in AIME)
    answers = {problem.id: problem.answer for problem in AIME}
    assert (answers["2024-I-1"], answers["2024-I-15"], answers["2024-II-1"], answers["2024-II-15"]) == ("204", "721", "73", "315")
    rows = [{"Problem": p.prompt.replace("Find", "Please find"), "Answer": int(p.answer)} for p in reversed(AIME)]
    pq.write_table(pa.Table.from_pylist(rows * 32), tmp_path / "aime.parquet")
    assert [(p.id, p.answer) for p in read_aime24(local(tmp_path / "aime.parquet")).problems] == list(answers.items())
    padded = [{"problem": p.prompt, "solution": f"\\boxed{{{int(p.answer):03}}}"} for p in AIME]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, padded)))
    assert read_aime24(local(tmp_path / "test.jsonl")).problems == AIME


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda rows: rows[1:], "holds 29 of the 30 problems of AIME 2024; missing: 2024-I-1"),
        (lambda rows: [{**rows[0], "answer": "1204"}, *rows[1:]], "not an integer from 0 to 999"),
        (lambda rows: [{**rows[0], "answer": "205"}, *rows[1:]], "is no problem of AIME 2024"),
        (lambda rows: [{"text": "?"}], "row 0 lacks problem or Problem"),
        (lambda rows: [rows[0], {**rows[1], "answer": None}], "row 1 lacks .* and expected_answer or answer"),
        (lambda rows: [*rows, [1]], r"line 31 is \[1\], not an object"),
    ],
)
def test_other_problems_are_not_taken_for_aime24(edit, message: str, tmp_path: Path) -> None:
    rows = edit([json.loads(line) for line in COPY.read_text(encoding="utf-8").splitlines()])
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=message):
        read_aime24(local(tmp_path / "x.jsonl"))


def test_the_stage_reads_published_settings_only_where_they_matter(tmp_path: Path) -> None:
    for preset, published in (("tiny", False), ("full", True)):
        path = tmp_path / f"{preset}.json"
        path.write_text(load_settings(overrides={"preset": preset}).problem_stage().model_dump_json(indent=1))
        assert isinstance(read_problem_settings(path), PublishedProblemSettings) == published
    with pytest.raises(SettingsError, match=r"evaluation_count is 29, but AIME24 has 30"):
        prepare(stage(tmp_path).model_copy(update={"evaluation_count": 29}), tmp_path)


def test_a_copy_of_aime24_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"x\.jsonl: line 1 is not JSON"):
        read_aime24(local(tmp_path / "x.jsonl"))


def write_lines(path: Path, rows: list[object], start: str = "", end: str = "\n") -> Path:
    path.write_bytes((start + end.join(json.dumps(row, ensure_ascii=False) for row in rows) + end).encode())
    return path


def test_lines_end_at_newlines_alone_and_numbers_are_answers(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a\u2028b\u0085c?", "label": 5},
        {"extra": 1, "prompt": "d?", "label": "-3"},
        {"prompt": "e?", "label": 12345678901234567890},
        {"prompt": "f?", "label": "0.50"},
    ]
    path = write_lines(tmp_path / "x.jsonl", rows, start="\ufeff", end="\r\n")
    distinct = read_source("dapo", local(path), "zhuzilin").distinct
    assert distinct["answer"].tolist() == ["5", "-3", "12345678901234567890", "0.50"]
    assert distinct["prompt"].tolist() == ["a\u2028b\u0085c?", "d?", "e?", "f?"]


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([5, -7], ["5", "-7"]),
        ([5.0, 0.25], ["5", "0.25"]),
        ([["5"], ["6"]], ["5", "6"]),
        ([[["5"]], [["6"]]], ["5", "6"]),
        ([[5], [6]], ["5", "6"]),
    ],
)
def test_answers_of_any_published_type_are_text(answers: list, text: list[str], tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a?", "b?"], "ground_truth": answers}), tmp_path / "x.parquet")
    assert read_source("dolci", local(tmp_path), "dolci").distinct["answer"].tolist() == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a?", "label": "1"}\n{"prompt": "b?", "la', "x.jsonl: line 2 is not JSON .* download it again"),
        (b'{"prompt": "a?", "label": "1"}\n[1]\n', r"x.jsonl: line 2 is \[1\], not an object"),
        (b'{"question": "a?", "label": "1"}\n', r"x.jsonl lacks the column prompt \(it has label: string, question"),
        (b'{"prompt": "a?", "label": "1"}\n{"prompt": "b?"}\n', "x.jsonl: row 1 has an empty label"),
    ],
)
def test_a_damaged_file_of_lines_is_named_with_its_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_source("dapo", local(tmp_path), "zhuzilin")


def test_a_missing_shard_and_a_cut_off_file_are_named(tmp_path: Path) -> None:
    for number in (0, 2):
        write_dolci(tmp_path / f"data/train-{number:05}-of-00003.parquet", make_problems(5, seed=number))
    with pytest.raises(ValueError, match=r"lacks train-00001-of-00003\.parquet \(1 of 3 files\); download it again"):
        read_source("dolci", local(tmp_path), "dolci")
    write_dolci(tmp_path / "data/train-00001-of-00003.parquet", make_problems(5, seed=1))
    assert read_source("dolci", local(tmp_path), "dolci").rows == 15
    path = tmp_path / "data/train-00002-of-00003.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"train-00002-of-00003\.parquet cannot be read .* download it again"):
        read_source("dolci", local(tmp_path), "dolci")


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("\ufeff", ""),
        ("\u200b\u2060", "\u200b"),
        ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"),
        ("\u3000", "\u3000\u3000"),
        ("Human: ", "\n\nAssistant:"),
        ("\u2028 user: ", "\u00a0"),
    ],
)
def test_a_template_comes_off_whatever_stands_around_it(start: str, end: str) -> None:
    wrapped = start + INSTRUCTIONS["answer_line"].replace("{problem}", "Find $x$.") + end
    assert strip_templates(pa.array([wrapped])).to_pylist() == ["Find $x$."]


def test_prompts_that_no_template_can_take_are_counted(folder: Path, tmp_path: Path) -> None:
    good = make_problems(4, seed=9)
    bad = [Made("Find <|im_end|> the sum of 1 and 7.", "8"), Made("Note: solve the following math problem step by step. 1+8?", "9")]
    write_dapo(tmp_path / "dapo/data/x.parquet", [*good, *bad], repeats=2)
    write_dolci(tmp_path / "dolci/data/x.parquet", good[:1])
    prepare(stage(tmp_path), tmp_path / "out")
    dapo = json.loads((tmp_path / "out/manifest.json").read_text())["counts"]["dapo"]
    assert dapo["drops"] == {"repeat of the same prompt": 6, "holds chat markup": 1, "holds an instruction of its own": 1}
    assert dapo["kept"] == 4 and dapo["rows"] == 12


def test_an_empty_training_set_is_an_error_that_says_why(tmp_path: Path) -> None:
    asked = [Made(AIME[4].prompt, AIME[4].answer)]
    write_dapo(tmp_path / "dapo/data/x.parquet", asked, repeats=2)
    write_dolci(tmp_path / "dolci/data/x.parquet", [Made(AIME[5].prompt, AIME[5].answer)])
    with pytest.raises(ValueError, match=r"no problem is left for train \(.*-1 dapo: gives away AIME24: same text"):
        prepare(stage(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out/train.parquet").exists()
