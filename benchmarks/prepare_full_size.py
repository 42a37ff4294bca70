"""Seconds (wall and processor), rows per second and peak memory of preparing the training sets at full size (1,805,014 rows).

    python -m benchmarks.prepare_full_size [--folder FOLDER]

The files are made up (benchmarks/published_files.py) in the published schemas, unless FOLDER holds some already. Preparation
runs in a process of its own, whose peak memory is its maximum resident set size.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.published_files import write_full_size
from pipeline.config import load_settings
from pipeline.problems.prepare import prepare
from pipeline.sections import PublishedProblemSettings


def settings(folder: Path) -> PublishedProblemSettings:
    """Preset full, reading the files in `folder`, with the plain template (the policy's tokenizer is not at hand)."""
    local = {name: {"path": str(folder / name), "revision": None} for name in ("dapo", "dolci")}
    published = {**local, "tokenizer": None, "chat_template": False, "max_prompt_tokens": None}
    stage = load_settings(overrides={"preset": "full", "published": published}).problem_stage()
    assert isinstance(stage, PublishedProblemSettings)
    return stage


def measure(folder: Path, out: Path) -> None:
    """Prepare and print one table row."""
    start = time.perf_counter()
    prepare(settings(folder), out)
    seconds = time.perf_counter() - start
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak, processor = usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime
    manifest = json.loads((out / "manifest.json").read_text())
    counts = manifest["counts"]
    rows = counts["dapo"]["rows"] + counts["dolci"]["rows"]
    print("| rows | seconds | CPU s | rows/s | peak GiB | distinct dapo | distinct dolci | kept |\n" + "|---" * 8 + "|")
    print(
        f"| {rows} | {seconds:.1f} | {processor:.1f} | {rows / seconds:,.0f} | {peak / 2**30:.2f} | {counts['dapo']['distinct']} "
        f"| {counts['dolci']['distinct']} | {counts['train']['kept']} |"
    )
    print(json.dumps(counts["train"], indent=1))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--folder", type=Path, help="where the files are, or are to be kept; default: a temporary folder")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if not (folder / "dapo").exists():
            start = time.perf_counter()
            write_full_size(folder)
            print(f"files written in {time.perf_counter() - start:.1f} s")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.execv(sys.executable, [sys.executable, "-c", _CHILD, str(folder), str(Path(scratch) / "out")])
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


_CHILD = "import sys; from pathlib import Path; from benchmarks.prepare_full_size import measure; measure(*map(Path, sys.argv[1:]))"

if __name__ == "__main__":
    main()
