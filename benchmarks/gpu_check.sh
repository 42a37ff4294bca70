#!/usr/bin/env bash
# The Megatron-core trainer on one GPU, in minutes: accuracy against float32, speed, memory, the cost of SAT's loss.
#   benchmarks/gpu_check.sh               one GPU of 80 GB or more; PYTHON=... an interpreter with torch
#   benchmarks/gpu_check.sh --miniature   the same script on a CPU, with toy sizes
# What it needs besides torch is put into .venv-gpu-check/ once; carry that folder to a machine that cannot reach a package index.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
carried=.venv-gpu-check
if [ ! -e "$carried/.ready" ]; then
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$carried" \
        megatron-core==0.16.1 pydantic==2.14.4 pydantic-core==2.50.5 annotated-types==0.8.0 typing-inspection==0.4.5 \
        typing-extensions==4.16.0 PyYAML==6.0.4 safetensors==0.8.0 packaging==26.4
    touch "$carried/.ready"
fi
PYTHONPATH=".:$carried" exec timeout 480 "$python" -m benchmarks.gpu_check "$@"
