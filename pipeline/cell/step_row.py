"""A row of steps.parquet: what the trainer, the samples, the schedule and the clock say of one optimizer step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.columns import Column, column, columns_of_row, values_of_row
from pipeline.objective.step_columns import objective_columns
from pipeline.records import Sample
from pipeline.trainer.update import Update


@dataclass(frozen=True)
class SampleColumns:
    """What follows from the samples that a step trained on."""

    lag_mean: float = column("optimizer steps", "mean over tokens of the step minus the version that sampled the token")
    lag_min: int = column("optimizer steps", "smallest lag of a token")
    lag_max: int = column("optimizer steps", "largest lag of a token")
    lag_histogram: str = column("tokens", "JSON object: lag -> number of tokens")
    reward_mean: float = column("1", "mean reward of the responses, 0 or 1 each")
    zero_variance_share: float = column("share", "groups whose rewards are all equal and that teach nothing")
    response_length_mean: float = column("tokens", "mean length of a response")
    truncated_share: float = column("share", "responses that ended at their length limit")
    num_responses: int = column("responses", "trained on")
    num_tokens: int = column("tokens", "of responses, trained on")

    @classmethod
    def of(cls, samples: Sequence[Sample], step: int, group_size: int) -> SampleColumns:
        """samples: group after group.  step: the version that they train, of which each token's stamp is subtracted."""
        lags: Counter[int] = Counter()
        for sample in samples:
            lags.update((step - sample.response.policy_version).tolist())
        rewards = [sample.reward for sample in samples]
        groups = [rewards[first : first + group_size] for first in range(0, len(rewards), group_size)]
        num_tokens = sum(lags.values())
        return cls(
            lag_mean=sum(lag * count for lag, count in lags.items()) / num_tokens,
            lag_min=min(lags),
            lag_max=max(lags),
            lag_histogram=json.dumps({str(lag): lags[lag] for lag in sorted(lags)}),
            reward_mean=sum(rewards) / len(rewards),
            zero_variance_share=sum(len(set(group)) == 1 for group in groups) / len(groups),
            response_length_mean=num_tokens / len(samples),
            truncated_share=sum(sample.response.finish_reason == "length" for sample in samples) / len(samples),
            num_responses=len(samples),
            num_tokens=num_tokens,
        )


@dataclass(frozen=True)
class StepRow:
    """update: of the trainer, with the columns of the method's parts.  samples: what was trained on."""

    update: Update
    samples: SampleColumns
    step: int = column("optimizer step", "from 0; the version that it trained")
    batch: int = column("", "rollout batch, from 0")
    first_of_batch: bool = column("", "whether it is the first optimizer step on its rollout batch")
    published_version: int = column("optimizer steps", "in the weights that the engine was given last")
    publish_debt: int = column("optimizer steps", "of the trainer that the engine does not have")
    generate_s: float = column("s", "of generating the rollout batch, its share")
    wait_s: float = column("s", "waited for the rollout batch, on its first step")
    publish_s: float = column("s", "of publishing the weights after this step")

    def flat(self) -> dict[str, Any]:
        """One entry a column, as steps.parquet has them."""
        return {**self.update.flat(), **values_of_row(self.samples), **values_of_row(self)}

    @classmethod
    def of(cls, flat: Mapping[str, Any]) -> StepRow:
        """The row that `flat` gave."""
        own, samples, update = (
            {name: flat[name] for name in (entry.name for entry in columns_of_row(kind))} for kind in (cls, SampleColumns, Update)
        )
        named = own.keys() | samples.keys() | update.keys()
        diagnostics = {name: value for name, value in flat.items() if name not in named}
        return cls(Update(diagnostics=diagnostics, **update), SampleColumns(**samples), **own)


def step_columns() -> tuple[Column, ...]:
    """Every column that a steps.parquet can have; a cell has those of its own method's parts."""
    *first, last = columns_of_row(Update)
    return (*first, *objective_columns(), last, *columns_of_row(SampleColumns), *columns_of_row(StepRow))
