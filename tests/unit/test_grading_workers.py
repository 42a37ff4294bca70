"""The worker pool: any thread, any process, deadlines, deaths; batches and files in order; a light import."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.grading import symbolic
from pipeline.grading.grade import grade, grade_file, grade_many

ROOT = Path(__file__).resolve().parents[2]
QUESTION = (r"\boxed{\sqrt{12}}", r"2\sqrt{3}")
SLOW = {"policy": "strict", "gold": "3", "answer": r"\int \int \int x^{x^{x}} dx dy dz"}


def _outcome_in_child(results: multiprocessing.Queue) -> None:
    results.put(grade(*QUESTION, "strict").outcome)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for_end(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not _alive(pid):
            return True
        time.sleep(0.02)
    return False


def test_import_and_integers_start_no_process_and_load_no_sympy() -> None:
    code = (
        "import sys\nfrom pipeline.grading.grade import grade\nfrom pipeline.grading import symbolic\n"
        r"assert grade('17+5=22;22-4=18;\\boxed{18}', '18', 'strict').outcome == 'correct'" + "\n"
        r"assert grade('\\boxed{\\frac{3}{4}}', '0.75', 'primemath').outcome == 'correct'" + "\n"
        "assert not {'sympy', 'mpmath', 'math_verify', 'numpy', 'torch'} & set(sys.modules)\n"
        "assert symbolic.pool().worker_pids() == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_threads_share_the_pool() -> None:
    outcomes: list[str] = []

    def work(factor: int) -> None:
        outcomes.append(grade(f"\\boxed{{\\sqrt{{{3 * factor**2}}}}}", f"{factor}\\sqrt{{3}}", "strict").outcome)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(2, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == ["correct"] * 12
    assert 1 <= len(symbolic.pool().worker_pids()) <= symbolic.pool().size


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_daemonic_child_processes_grade_with_workers_of_their_own(method: str) -> None:
    assert grade(*QUESTION, "strict").outcome == "correct"
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    children = [context.Process(target=_outcome_in_child, args=(results,), daemon=True) for _ in range(2)]
    for child in children:
        child.start()
    assert [results.get(timeout=60) for _ in children] == ["correct", "correct"]
    for child in children:
        child.join(30)
    assert grade(*QUESTION, "strict").outcome == "correct"


def test_a_worker_is_killed_at_the_deadline_and_replaced() -> None:
    pool = symbolic.WorkerPool(1)
    try:
        assert pool.ask({"policy": "strict", "gold": r"2\sqrt{3}", "answer": r"\sqrt{12}"}).verdict is True
        (first,) = pool.worker_pids()
        start = time.monotonic()
        reply = pool.ask(SLOW, deadline_s=0.2)
        assert reply == symbolic.Reply(None, "timeout")
        assert time.monotonic() - start < 10.0
        assert not _alive(first)
        assert pool.ask({"policy": "strict", "gold": r"2\sqrt{3}", "answer": r"\sqrt{13}"}).verdict is False
    finally:
        pool.shut_down()
    assert pool.worker_pids() == []


def test_a_dead_worker_is_replaced_without_notice() -> None:
    grade(*QUESTION, "strict")
    for pid in symbolic.pool().worker_pids():
        os.kill(pid, signal.SIGKILL)
        assert _wait_for_end(pid, 5)
    assert grade(r"\boxed{\sqrt{27}}", r"3\sqrt{3}", "strict").outcome == "correct"


def test_workers_end_with_their_parent_even_if_it_left_children() -> None:
    code = (
        "import os, time\nfrom pipeline.grading import symbolic\nfrom pipeline.grading.grade import grade\n"
        r"grade('\\boxed{\\sqrt{12}}', '2\\sqrt{3}', 'strict')" + "\n"
        "print(*symbolic.pool().worker_pids(), flush=True)\n"
        "if os.fork() == 0:\n    time.sleep(3)\n    os._exit(0)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert pids and all(_wait_for_end(pid, 10) for pid in pids)


def test_a_batch_gives_the_grades_of_its_members_in_order() -> None:
    answers = ["18", r"\sqrt{18}", "x", r"3\sqrt{2}", "17", r"\frac{6}{\sqrt{2}}", ""]
    pairs = [(f"\\boxed{{{answer}}}", r"3\sqrt{2}") for answer in answers] * 3
    batch = [(result.outcome, result.extracted) for result in grade_many(pairs, "strict")]
    assert batch == [(result.outcome, result.extracted) for result in (grade(*pair, "strict") for pair in pairs)]
    assert [outcome for outcome, _ in batch[:7]] == [
        "incorrect",
        "correct",
        "incorrect",
        "correct",
        "incorrect",
        "correct",
        "no_answer",
    ]
    assert grade_many([], "strict") == []
    assert [result.outcome for result in grade_many([("it is 5", "5")] * 2, "strict", truncated=[False, True])] == [
        "correct",
        "no_answer",
    ]


def test_four_thousand_ordinary_responses_take_seconds() -> None:
    prose = "We add $\\frac{%d}{7}$ and \\(x_{%d}\\), which gives \\[ a^{%d} = b \\]. " * 40
    answers = [("42", "42"), ("41", "42"), ("3/4", r"\frac34"), ("1,024", "1024"), (r"\sqrt{8}", r"2\sqrt{2}"), ("(1,2)", "(2,1)")]
    pairs = [(prose % ((i,) * 120) + f"So \\boxed{{{answers[i % 6][0]}}}.", answers[i % 6][1]) for i in range(4096)]
    start = time.process_time()
    grades = grade_many(pairs, "strict")
    assert time.process_time() - start < 5.0
    assert [result.outcome for result in grades[:6]] == ["correct", "incorrect", "correct", "correct", "correct", "incorrect"]


def test_a_file_is_graded_line_by_line_and_malformed_lines_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    path.write_bytes(
        b'{"response": "\\\\boxed{5}", "gold": "5"}\n{"response": "\\\\boxed{5}"}\nnot json\n[1]\n\n\xff\xfe\n'
        b'{"response": 5, "gold": "5"}\n{"response": "it is 5", "gold": 5, "truncated": true}\n'
        b'{"response": "\\\\boxed{5}", "gold": 5}\n'
    )
    out, problems = io.StringIO(), io.StringIO()
    assert grade_file(path, "strict", out, problems) == 5
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["outcome"] for line in lines] == ["correct", "error", "error", "error", "error", "error", "no_answer", "correct"]
    assert all(set(line) == {"outcome", "extracted", "rule", "seconds"} for line in lines)
    assert [f"line {number}:" in problems.getvalue() for number in range(1, 10)] == [
        number in (2, 3, 4, 6, 7) for number in range(1, 10)
    ]
    with pytest.raises(ValueError, match="is not a file"):
        grade_file(tmp_path / "missing.jsonl", "strict")
