"""`make watch`: the table of `make status`, live, until every cell is finished."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live

from pipeline.cell.status import cell_states, run_settings, status_table

_REFRESH_S = 1.0


def watch(preset: str) -> None:
    """Show the table until every cell is finished. New settings of the run are picked up while it is shown."""
    with Live(console=Console(), refresh_per_second=2) as live:
        while True:
            statuses = cell_states(run_settings(preset))
            live.update(status_table(preset, statuses))
            if all(status.state == "finished" for status in statuses):
                return
            time.sleep(_REFRESH_S)
