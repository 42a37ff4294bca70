"""The command line for lm-eval and the rows made of its logged samples; lm_eval_samples.jsonl was logged by lm-eval 0.4.13.

The log holds three problems with sixteen responses each, of policy version 540. Running lm-eval itself: tests/lm_eval.
"""

from __future__ import annotations

import dataclasses
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.evaluation.lm_eval_run import TASK_FILE, LmEvalRun, lm_eval_command, sample_log, score_rows, write_tasks
from pipeline.evaluation.lm_eval_tasks import avg_at_k
from pipeline.evaluation.protocols import EvaluationProtocol, evaluate_protocol
from pipeline.evaluation.rows import sample_row
from pipeline.problems.template import instruct

RECORDED = Path(__file__).parent / "lm_eval_samples.jsonl"
IDS = ("2024-1", "2024-2", "2024-3")


def run_of(tmp_path: Path, longest_prompt: int = 300) -> LmEvalRun:
    settings = load_settings(overrides={"preset": "full"}).cell(Cell("sat-gspo-r3", "8", 0))
    return LmEvalRun.of(
        settings,
        endpoint="http://127.0.0.1:30000/",
        policy_version=540,
        problems=(tmp_path / "scoring.parquet", tmp_path / "aime24.jsonl"),
        out=tmp_path / "out",
        stop_token_ids=(151643, 151645),
        longest_prompt=longest_prompt,
        num_concurrent=64,
        timeout_s=7200,
    )


def test_command_names_the_endpoint_and_version_and_sends_no_seed(tmp_path):
    run = run_of(tmp_path)
    assert lm_eval_command(run, ("exec", "image", "python"))[:4] == ["exec", "image", "python", "-m"]
    command = lm_eval_command(run, ["python"])
    assert command[:6] == ["python", "-m", "lm_eval", "run", "--model", "sglang-generate"]
    arguments = dict(item.split("=", 1) for item in command[command.index("--model_args") + 1].split(","))
    assert arguments == {
        "model": "version_000540",
        "base_url": "http://127.0.0.1:30000/generate",
        "tokenizer_backend": "None",
        "tokenized_requests": "False",
        "num_concurrent": "64",
        "timeout": "7200",
    }
    assert command[command.index("--tasks") + 1] == ",".join(str(run.task_file(problems)) for problems in run.problems)
    assert command[command.index("--output_path") + 1] == str(run.out)
    assert "--log_samples" in command and "--use_cache" not in command
    assert not any("seed" in part or part == "--apply_chat_template" for part in command)


def test_task_file_carries_the_cells_sampling(tmp_path):
    run = run_of(tmp_path)
    write_tasks(run)
    task, other = (yaml.safe_load(run.task_file(problems).read_text(encoding="utf-8")) for problems in run.problems)
    assert (task["task"], other["task"]) == ("scoring_avg_at_k", "aime24_avg_at_k")
    assert Path(task["include"]) == TASK_FILE and TASK_FILE.is_file()
    assert (task["repeats"], task["metadata"]["problems"]) == (16, str((tmp_path / "scoring.parquet").resolve()))
    assert task["generation_kwargs"] == {
        "until": [],
        "do_sample": True,
        "temperature": 0.95,
        "top_p": 1.0,
        "top_k": -1,
        "max_gen_toks": 32768,
        "stop_token_ids": [151643, 151645],
    }


def test_response_limit_leaves_room_for_the_longest_prompt(tmp_path):
    assert run_of(tmp_path, longest_prompt=36864 - 32768 - 1).max_response_tokens == 32768
    assert run_of(tmp_path, longest_prompt=6000).max_response_tokens == 36864 - 6000 - 1
    with pytest.raises(ValueError, match="leaves no room"):
        run_of(tmp_path, longest_prompt=36863)


def rows_of(log: Path, **changes: Any) -> list[dict[str, Any]]:
    return score_rows(log, **{"policy_version": 540, "num_samples": 16, "problems": IDS} | changes)


def test_recorded_log_becomes_the_rows_that_its_responses_are_worth():
    entries = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    rows = rows_of(RECORDED)
    assert [(row["problem_id"], row["sample"]) for row in rows] == [(problem, k) for problem in IDS for k in range(16)]
    texts = [(entry["doc"]["answer"], text) for entry in entries for text in entry["resps"][0]]
    for row, (answer, text) in zip(rows, texts, strict=True):
        again = sample_row(540, row["problem_id"], row["sample"], text, answer, row["finish_reason"], row["length"])
        assert row == again.flat()
    assert {row["finish_reason"] for row in rows} == {"stop", "length"}
    for verdict, metric in (("correct", "avg_at_k"), ("correct_strict", "avg_at_k_strict")):
        logged = sum(Fraction(round(16 * entry[metric]), 16) for entry in entries) / 3
        assert evaluate_protocol(rows, EvaluationProtocol("avg", 16), verdict=verdict) == logged
    assert sum(row["correct"] != row["correct_strict"] for row in rows) == sum(entry["disagreements"] for entry in entries) > 0


def changed(tmp_path: Path, change) -> Path:
    entries = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    change(entries)
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, entries)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e[1]["samples"][3].update(policy_version=541), r"policy versions \[540, 541\]"),
        (lambda e: e[1]["samples"].pop(), "problem 2024-2 has 15 and lacks sample 15"),
        (lambda e: e.append(e[0]), "there twice"),
        (lambda e: e.pop(), r"without a sample: \['2024-3'\]"),
        (lambda e: e[0]["samples"].append(e[0]["samples"][0] | {"sample": 16}), "49 responses, expected 3 problems x 16"),
        (lambda e: e[2].pop("samples"), "line 3 is not a logged problem"),
    ],
)
def test_a_log_that_is_not_one_whole_evaluation_is_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        rows_of(changed(tmp_path, change))


def test_another_version_than_the_one_asked_for_is_refused():
    with pytest.raises(ValueError, match="version 540, asked for was 544"):
        rows_of(RECORDED, policy_version=544)


def test_a_folder_of_several_runs_is_refused(tmp_path):
    run = dataclasses.replace(run_of(tmp_path), out=tmp_path)
    with pytest.raises(ValueError, match="holds 0 sample logs"):
        sample_log(run, run.problems[1])
    log = tmp_path / "version_000540" / "samples_aime24_avg_at_k_2026-01-01.jsonl"
    log.parent.mkdir()
    log.touch()
    assert sample_log(run, run.problems[1]) == log
    log.with_name("samples_aime24_avg_at_k_2026-01-02.jsonl").touch()
    with pytest.raises(ValueError, match="holds 2 sample logs"):
        sample_log(run, run.problems[1])


def test_the_servers_word_on_a_response_is_kept_beside_its_text():
    meta = {"finish_reason": {"type": "length", "length": 9}, "completion_tokens": 9, "weight_version": "540"}
    (text,) = avg_at_k.parse_generations({"text": "so \\boxed{5}", "meta_info": meta})
    assert (text, text.finish_reason, text.length, text.policy_version) == ("so \\boxed{5}", "length", 9, 540)
    metrics = avg_at_k.process_results({"id": "p", "answer": "5"}, [[text, text]])
    assert (metrics["avg_at_k"], metrics["truncated"], metrics["policy_version"]) == (1.0, 1.0, [540, 540])
    with pytest.raises(ValueError, match="aborted a response: full"):
        avg_at_k.parse_generations({"text": "", "meta_info": meta | {"finish_reason": {"type": "abort", "message": "full"}}})
    with pytest.raises(ValueError, match="'default', not a policy version"):
        avg_at_k.parse_generations({"text": "", "meta_info": meta | {"weight_version": "default"}})
    with pytest.raises(ValueError, match="sglang-generate"):
        avg_at_k.process_results({"id": "p", "answer": "5"}, [["plain text"]])
    with pytest.raises(ValueError, match=r"policy versions \[7, 8\]"):
        avg_at_k.one_version([[7, 7], [7, 8]])
    with pytest.raises(ValueError, match=r"\[15, 16\] responses"):
        avg_at_k.samples_per_problem([[{}] * 16, [{}] * 15])


def test_the_tasks_own_template_is_the_boxed_instruction():
    template = re.search(r'prompt_template: "(.*)"', TASK_FILE.read_text(encoding="utf-8"))
    assert template is not None
    assert yaml.safe_load(f'"{template[1]}"').format(problem="1+1?") == instruct("1+1?", "boxed")
