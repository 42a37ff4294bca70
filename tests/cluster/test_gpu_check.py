"""The single-GPU check, in miniature on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys


def test_the_miniature_measures_what_a_gpu_run_would():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--miniature"], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["accuracy"]["own_routes"] < 1e-6 and found["accuracy"]["replayed_routes"] < 1e-6
    assert all(measured["tokens_per_s"] > 0 for measured in found["training"].values())
    assert found["sat_loss_over_ppo_loss"] > 0 and found["layers"] == "local"
