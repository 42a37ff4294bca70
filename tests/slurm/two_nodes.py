"""The body of a job on two nodes: starts a process on each of them, and ends without ending the last one."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pipeline.launch.hosts import cell_hosts
from pipeline.launch.processes import Process, ProcessSpec

SHOW = "import os, sys; print(os.environ['SLURMD_NODENAME'], os.environ['CUDA_VISIBLE_DEVICES'], os.environ['GIVEN'], flush=True)"


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
    controller = os.environ["SLURMD_NODENAME"]
    shown = [(logs / f"shown-{number}.log").read_text() for number in range(2)]
    running = [process.exit_code is None for process in left]
    out.write_text(json.dumps({"shown": shown, "death": killed.death(), "running": running, "controller": controller}))
    sys.stdout.flush()
    os._exit(0)  # as if killed: nothing is closed


if __name__ == "__main__":
    main(Path(sys.argv[1]))
