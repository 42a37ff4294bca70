"""The schedule against an event-by-event simulation and against the closed form."""

from __future__ import annotations

import itertools

import pytest

from pipeline.rollout.schedule import Schedule

GRID = list(itertools.product([True, False], [1, 2, 3, 8], [1, 2, 8]))


def schedule(asynchronous: bool, n: int, m: int, batches: int = 50, interval: int = 5, ahead: int = 1) -> Schedule:
    return Schedule(asynchronous, n, m, num_steps=batches * m, evaluation_interval=interval, generate_ahead=ahead)


def simulate(s: Schedule) -> list[int]:
    """Realised lag of every step, by playing the run: the engine holds one version, generation starts one batch ahead."""
    held, trained, lags, sampled_by = 0, 0, [], {0: 0}
    for batch in range(s.num_batches):
        if s.asynchronous:
            sampled_by[batch + 1] = held
        else:
            sampled_by[batch] = held
        for _ in range(s.steps_per_batch):
            lags.append(trained - sampled_by[batch])
            trained += 1
        if (batch + 1) % s.broadcast_interval == 0:
            held = trained
    return lags


@pytest.mark.parametrize(("asynchronous", "n", "m"), GRID)
def test_lags_are_those_of_the_played_run(asynchronous, n, m):
    s = schedule(asynchronous, n, m)
    assert [s.lag(step) for step in range(s.num_steps)] == simulate(s)


@pytest.mark.parametrize(("asynchronous", "n", "m"), GRID)
def test_lags_follow_the_closed_form(asynchronous, n, m):
    s = schedule(asynchronous, n, m)
    for step in range(s.num_steps):
        k, h = divmod(step, m)
        base = (m * (((k - 1) % n) + 1) if k else 0) if asynchronous else m * (k % n)
        assert s.lag(step) == base + h


def test_the_papers_lags():
    assert schedule(True, 1, 1, 9).lag_histogram() == {0: 1, 1: 8}
    assert schedule(True, 8, 1, 17).lag_histogram() == {0: 1, **dict.fromkeys(range(1, 9), 2)}
    figure_1 = schedule(True, 1, 8, 3).lag_histogram()
    assert figure_1 == {**dict.fromkeys(range(8), 1), **dict.fromkeys(range(8, 16), 2)}
    assert schedule(False, 1, 1, 9).lag_histogram() == {0: 9}


@pytest.mark.parametrize(("asynchronous", "n", "m"), GRID)
@pytest.mark.parametrize("ahead", [1, 3, 8])
def test_flights_partition_the_batches_without_mixing_versions(asynchronous, n, m, ahead):
    s = schedule(asynchronous, n, m, ahead=ahead)
    flights = {s.flight(batch) for batch in range(s.num_batches)}
    assert sorted(batch for flight in flights for batch in flight) == list(range(s.num_batches))
    for flight in flights:
        assert len({s.generating_version(batch) for batch in flight}) == 1
        assert len(flight) <= ahead


@pytest.mark.parametrize(("asynchronous", "n", "m"), GRID)
def test_a_flight_can_be_requested_before_it_is_needed(asynchronous, n, m):
    """When batch k starts, the version that samples batch k+1 (asynchronous) or k (synchronous) has been published."""
    s = schedule(asynchronous, n, m, ahead=8)
    for batch in range(s.num_batches - 1):
        wanted = batch + 1 if asynchronous else batch
        assert s.generating_version(wanted) == s.published_version(batch)


def test_evaluations_score_the_published_version():
    s = Schedule(True, 8, 1, num_steps=544, evaluation_interval=5)
    versions = {step: s.published_version(step + 1) for step in range(4, 544, 5)}
    assert versions[4] == 0 and versions[9] == versions[14] == 8
    reported = {step: version for version in range(0, 545, 8) for step in s.evaluation_steps(version)}
    assert reported == versions
    assert len(versions) == 108 and len(set(versions.values())) == 68


def test_every_evaluation_point_is_reported_once_under_every_schedule():
    for asynchronous, n, m in GRID:
        s = schedule(asynchronous, n, m, interval=7)
        published = range(0, s.num_steps + 1, n * m)
        assert sorted(step for version in published for step in s.evaluation_steps(version)) == list(range(6, s.num_steps, 7))
