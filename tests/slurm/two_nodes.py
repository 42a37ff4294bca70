"""The body of a job on two nodes: processes on each of them, the signals of a job, and an end that ends nothing by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from pipeline.processes.hosts import cell_hosts
from pipeline.processes.process import Process, ProcessSpec
from pipeline.processes.stop import stop_on_signals

SHOW = "import os, sys; print(os.environ['SLURMD_NODENAME'], os.environ['CUDA_VISIBLE_DEVICES'], os.environ['GIVEN'], flush=True)"
WAITS = (sys.executable, "-c", "import time; time.sleep(1000)")
SETTLE_S = 2.0  # SLURM signals one step after the other


def signalled(processes: list[Process]) -> dict[str, list[bool]]:
    """Whether each process still runs after a signal to the job's steps, by signal."""
    running = {}
    for name in ("USR1", "TERM"):
        with stop_on_signals() as stop:
            while not stop.told:  # again and again: the step that listens may not be up yet
                subprocess.run(["scancel", f"--signal={name}", os.environ["SLURM_JOB_ID"]], check=True)
                time.sleep(SETTLE_S)
            running[name] = [process.exit_code is None for process in processes]
    return running


def main(out: Path) -> None:
    hosts = cell_hosts(2)
    logs = out.parent / "logs"
    for number, host in enumerate(hosts):
        spec = ProcessSpec(f"shown-{number}", (sys.executable, "-c", SHOW), {"GIVEN": "given"}, (2 * number, 2 * number + 1), host)
        process = Process(spec, logs / f"{spec.name}.log")
        while process.exit_code is None:
            time.sleep(0.1)
        assert process.exit_code == 0, process.death()
    left = [Process(ProcessSpec(f"left-{n}", ("sleep", "1000"), host=host), logs / f"left-{n}.log") for n, host in enumerate(hosts)]
    killed = Process(ProcessSpec("killed", ("sh", "-c", "echo last words; kill -9 $$"), host=hosts[1]), logs / "killed.log")
    while killed.exit_code is None:
        time.sleep(0.1)
    ranks = [Process(ProcessSpec(f"rank-{n}", WAITS, host=host), logs / f"rank-{n}.log") for n, host in enumerate(hosts)]
    time.sleep(SETTLE_S)
    survived = signalled([*left, *ranks])
    for rank in ranks:
        rank.stop()
    controller = os.environ["SLURMD_NODENAME"]
    shown = [(logs / f"shown-{number}.log").read_text() for number in range(2)]
    running = [process.exit_code is None for process in left]
    found = {"shown": shown, "death": killed.death(), "running": running, "survived": survived, "controller": controller}
    out.write_text(json.dumps(found | {"stopped": [rank.exit_code for rank in ranks]}))
    sys.stdout.flush()
    os._exit(0)  # as if killed: nothing is closed


if __name__ == "__main__":
    main(Path(sys.argv[1]))
