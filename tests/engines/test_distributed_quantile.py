"""The quantile over two real processes equals that of all their values together, bit for bit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.multiprocessing.spawn import spawn

from pipeline.objective.quantile import distributed_staleness_quantile, staleness_quantile

ALPHAS = (0.5, 0.9, 0.999, 1.0)


def shards() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What the two ranks hold: continuous values, ties over both ranks, an empty rank, wide magnitudes, zeros and denormals."""
    generator = torch.Generator().manual_seed(0)

    def random(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.rand(count, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "float32": (random(70_001) * 0.02, random(30_000) ** 4),
        "float64": (random(999, torch.float64), random(5_003, torch.float64) * 1e-3),
        "ties": (torch.full((10,), 0.25), torch.tensor([0.1] * 3 + [0.25] * 7 + [0.5])),
        "empty rank": (random(0), random(11)),
        "magnitudes": (torch.tensor([0.0, -0.0, 1e-45, 1e-38, 3e38]), torch.tensor([1e-45, 1e4, float("inf")])),
        "one value": (random(1), random(0)),
    }


class Ranks:
    alone = False

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(values)
        return values


def rank_main(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    results: dict[str, object] = {}
    for name, values in shards().items():
        results[name] = [distributed_staleness_quantile(values[rank], alpha, Ranks()) for alpha in ALPHAS]
    for name, value in (("nothing", torch.zeros(0)), ("NaN", torch.tensor([0.5, float("nan") if rank else 0.5]))):
        try:
            distributed_staleness_quantile(value, 0.9, Ranks())
        except ValueError as error:
            results[name] = str(error)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder: Path = tmp_path_factory.mktemp("quantile")
    spawn(rank_main, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", shards())
def test_both_ranks_get_the_order_statistic_of_all_values(results: list[dict], name: str) -> None:
    values = torch.cat(shards()[name]).abs()
    for position, alpha in enumerate(ALPHAS):
        expected = staleness_quantile(values, alpha)
        for rank in range(2):
            found = results[rank][name][position]
            assert torch.equal(found, expected) and found.dtype == values.dtype, (alpha, found, expected)


def test_no_values_and_nan_are_refused_on_both_ranks(results: list[dict]) -> None:
    for rank in range(2):
        assert "at least one active token" in results[rank]["nothing"]
        assert "1 staleness values are negative or NaN" in results[rank]["NaN"]
