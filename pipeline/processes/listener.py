"""A job step that hears SLURM's signals for the cell: python listener.py, which writes the name of each to its standard output.

SLURM signals the steps of a job ahead of its time limit (sbatch --signal) and when it is to be preempted, and not the batch script
under which the cell runs. Ends when its standard input closes. Standard library only.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

HEARD = (signal.SIGTERM, signal.SIGUSR1)


def main() -> None:
    for number in HEARD:
        signal.signal(number, _tell)
    os.write(1, b"ready\n")
    while os.read(0, 1024):
        pass


def _tell(number: int, _: FrameType | None) -> None:
    os.write(1, f"{signal.Signals(number).name}\n".encode())


if __name__ == "__main__":
    main()
