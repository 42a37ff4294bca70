"""The plan as terminal tables: cells, memory, disk, the constants with their sources."""

from __future__ import annotations

from dataclasses import fields

from rich.console import Console
from rich.table import Table

from pipeline.planning.bounds import Bounds
from pipeline.planning.constants import DEVICES, GB, LENGTH_SPREAD, Constant
from pipeline.planning.estimate import CellEstimate, Plan
from pipeline.planning.memory import MemoryPart, fits, server_fits, server_memory, total_bytes, trainer_memory

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def seconds(value: Bounds) -> str:
    """An interval of seconds in the unit that its upper end asks for."""
    size, unit = next(((size, unit) for size, unit in _UNITS if value.high >= 2 * size), (1.0, "s"))
    return f"{number(value / size, digits=2)} {unit}"


def number(value: Bounds, digits: int = 3) -> str:
    """An interval with that many significant digits."""
    low, high = (rounded(end, digits) for end in value.pair())
    return low if low == high else f"{low} - {high}"


def rounded(value: float, digits: int = 3) -> str:
    """A number with that many significant digits."""
    return f"{value:,.0f}" if value >= 10**digits else f"{value:.{digits}g}"


def size_text(value: Bounds | float) -> str:
    """Bytes in the unit that fits."""
    interval = value if isinstance(value, Bounds) else Bounds.point(value)
    return _scaled(interval, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")))


def token_text(value: Bounds) -> str:
    """Numbers of tokens, in billions, millions or thousands."""
    return _scaled(value, ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")))


def _scaled(value: Bounds, units: tuple[tuple[float, str], ...]) -> str:
    scale, unit = next((pair for pair in units if value.high >= pair[0]), units[-1])
    return f"{number(value / scale)} {unit}"


def show_plan(plan: Plan, console: Console) -> None:
    """Everything a plan says."""
    console.print(_cell_table(plan))
    console.print(_total_lines(plan))
    if plan.deployment.num_devices:
        _show_memory(plan, console)
    console.print(_storage_table(plan))
    console.print(_constant_table(plan))


def table_of(title: str, *columns: str) -> Table:
    """A table for the terminal: the first column to the left and whole, the others to the right."""
    table = Table(title=title, title_justify="left", pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", overflow="fold", no_wrap=position == 0)
    return table


def _cell_table(plan: Plan) -> Table:
    table = table_of(
        f"preset {plan.settings.preset}: {len(plan.cells)} cells on {plan.deployment.num_devices or 'CPU'} "
        f"{plan.deployment.device.name if plan.deployment.num_devices else ''}".rstrip(),
        *("cell", "steps at lag", "tokens", "wall", "GPU-hours"),
        *("generate", "train", "reference KL", "statistics", "publish", "evaluate"),
    )
    for cell in plan.cells:
        parts = (seconds(cell.part(name)) for name in ("generate", "train", "reference_kl", "statistics", "publish", "evaluate"))
        tokens = token_text(cell.workload.tokens)
        table.add_row(
            str(cell.cell), lags_text(cell.workload.lag_histogram), tokens, seconds(cell.wall_s), _gpu_hours(cell), *parts
        )
    return table


def _gpu_hours(cell: CellEstimate) -> str:
    return number(cell.gpu_hours) if cell.num_devices else "-"


def lags_text(histogram: dict[int, int]) -> str:
    """Optimizer steps at each lag, neighbours with equal counts together: "0: 1, 1-7: 68, 8: 67"."""
    runs: list[list[int]] = []
    for lag, count in histogram.items():
        if runs and runs[-1][2] == count and runs[-1][1] == lag - 1:
            runs[-1][1] = lag
        else:
            runs.append([lag, lag, count])
    return ", ".join(f"{first}: {count}" if first == last else f"{first}-{last}: {count}" for first, last, count in runs)


def _total_lines(plan: Plan) -> str:
    wall = sum((cell.wall_s for cell in plan.cells), Bounds.point(0.0))
    tokens = sum((cell.workload.tokens for cell in plan.cells), Bounds.point(0.0))
    logs = sum(cell.log_bytes for cell in plan.cells)
    return (
        f"total: {token_text(tokens)} response tokens, {seconds(wall)} one after the other, "
        f"{number(plan.gpu_hours)} GPU-hours, logs {size_text(logs)}, checkpoints {size_text(plan.finished_disk_bytes)} kept and "
        f"at most {size_text(plan.running_disk_bytes)} while all cells run\n"
    )


def _show_memory(plan: Plan, console: Console) -> None:
    ranks, servers, device = plan.deployment.ranks, plan.deployment.servers, plan.deployment.device
    reference = 1 + any(cell.workload.passes.reference_kl for cell in plan.cells)
    micro = plan.settings.trainer.micro_batch_tokens
    trainer = trainer_memory(plan.size, ranks, micro, reference)
    title = (
        f"a training GPU: {ranks.count} ranks, TP{ranks.tensor_parallel} PP{ranks.pipeline_parallel} EP{ranks.expert_parallel} "
        f"ETP{ranks.expert_tensor_parallel}, micro-batches of {micro:,} tokens"
    )
    console.print(_memory_table(title, trainer))
    console.print("fits " + ", ".join(f"{limit} GB: {'yes' if fits(trainer, limit * GB) else 'NO'}" for limit in (80, 141)) + "\n")
    title = f"a rollout GPU: servers of TP{servers.tensor_parallel}, memory fraction {servers.memory_fraction}"
    console.print(_memory_table(f"{title}, {device.name}", server_memory(plan.size, device, servers)))
    context = plan.settings.rollout.context_length
    limits = ((80, DEVICES["H100"]), (141, DEVICES["H200"]))
    answers = (f"{gb} GB: {'yes' if server_fits(plan.size, gpu, servers, context) else 'NO'}" for gb, gpu in limits)
    console.print(f"holds a response of {context:,} tokens on " + ", ".join(answers) + "\n")


def _memory_table(title: str, parts: list[MemoryPart]) -> Table:
    table = table_of(title, "part", "GB", "how")
    for part in parts:
        table.add_row(part.name, f"{part.bytes / GB:.1f}", part.note)
    table.add_row("total", f"{total_bytes(parts) / GB:.1f}", "")
    return table


def _storage_table(plan: Plan) -> Table:
    by_lag = {cell.cell.lag: cell for cell in reversed(plan.cells) if not cell.workload.routing_replay} or {
        cell.cell.lag: cell for cell in reversed(plan.cells)
    }
    replay = {cell.cell.lag: cell for cell in reversed(plan.cells) if cell.workload.routing_replay}
    columns = (
        "one checkpoint",
        "write",
        "disk, running",
        "disk, finished",
        "signal lead, at least",
        "host memory",
        "scratch",
        "logs",
    )
    table = table_of("disk and host memory of a cell", "lag", *columns, "rollouts of a step, if kept")
    for suffix, cells in (("", by_lag), (" with R3", replay)):
        for lag, cell in sorted(cells.items()):
            checkpoint = cell.checkpoint
            table.add_row(
                lag + suffix,
                size_text(checkpoint.bytes),
                seconds(cell.checkpoint_write_s),
                size_text(checkpoint.running_bytes),
                size_text(checkpoint.finished_bytes),
                seconds(cell.batch_s + cell.checkpoint_write_s),
                size_text(cell.host_bytes),
                size_text(cell.scratch_bytes),
                size_text(cell.log_bytes),
                size_text(cell.rollout_bytes_per_step),
            )
    return table


def _constant_table(plan: Plan) -> Table:
    table = table_of("constants", "name", "interval", "unit", "source")
    workload = plan.cells[0].workload
    named: list[tuple[str, Constant]] = [("response_tokens", workload.response_tokens), ("prompt_tokens", workload.prompt_tokens)]
    named += [("length_spread", LENGTH_SPREAD)]
    named += [(field.name, getattr(plan.deployment.rates, field.name)) for field in fields(plan.deployment.rates)]
    for name, constant in named:
        assumed = "assumed: " if constant.assumed else ""
        table.add_row(name, _scientific(constant.value), constant.unit, assumed + constant.source)
    return table


def _scientific(value: Bounds) -> str:
    if 1e-2 <= value.high < 1e5:
        return number(value)
    return f"{value.low:.2g}" if value.low == value.high else f"{value.low:.2g} - {value.high:.2g}"


def show_by_length(rows: list[tuple[int, Plan]], console: Console) -> None:
    """What a run takes at known mean response lengths: the one unknown that widens the intervals most."""
    columns = ("tokens a response", "wall of a cell", "GPU-hours of a cell", "GPU-hours of the run")
    table = table_of("by mean response length", *columns)
    for length, plan in rows:
        cell = max(plan.cells, key=lambda cell: cell.wall_s.high)
        table.add_row(f"{length:,}", seconds(cell.wall_s), _gpu_hours(cell), number(plan.gpu_hours))
    console.print(table)
