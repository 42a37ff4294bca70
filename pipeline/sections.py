"""The sections of config.yaml as frozen, typed, forbidding models; pipeline/config.py puts them together and reads them.

No section has a default of its own: a setting's default stands in config.yaml and nowhere else.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, create_model, model_serializer, model_validator

from pipeline.objective.axes import Denominator
from pipeline.objective.methods import METHODS, all_parts
from pipeline.objective.part import Part
from pipeline.section import Section, unknown

S = TypeVar("S", bound=Section)


class ProblemSettings(Section):
    kind: Literal["dapo_dolci", "arithmetic"]
    seed: int
    train_count: int = Field(gt=0)
    evaluation_count: int = Field(gt=0)
    scoring_count: int = Field(gt=0)


class SourceSettings(Section):
    """Where files come from: a local file or folder, or a repository of the hub at a revision."""

    path: str
    revision: str | None


class DatasetSettings(SourceSettings):
    form: Literal["dapo", "open_r1", "zhuzilin", "dolci"]
    paper_count: int = Field(ge=0)


class PublishedSettings(Section):
    """How problems of kind dapo_dolci are made from what others published."""

    dapo: DatasetSettings
    dolci: DatasetSettings
    aime24: SourceSettings | None
    tokenizer: SourceSettings | None
    instruction: Literal["answer_line", "boxed", "none"]
    chat_template: bool
    max_prompt_tokens: int | None = Field(gt=0)
    duplicates_across_sources: Literal["drop", "keep"]
    near_duplicate_threshold: float | None = Field(gt=0, le=1)
    decontamination_threshold: float = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _has_tokenizer(self) -> PublishedSettings:
        if self.tokenizer is None and (self.chat_template or self.max_prompt_tokens is not None):
            raise ValueError(
                "tokenizer is null, but chat_template or max_prompt_tokens needs it; name the policy's or turn both off"
            )
        return self


class PublishedProblemSettings(ProblemSettings):
    """What the stage prepare reads for problems.kind dapo_dolci; other kinds read ProblemSettings alone."""

    published: PublishedSettings


class ModelSettings(Section):
    """The policy: the published one at `path`, which must have these sizes, or one of these sizes built from scratch."""

    path: str | None
    revision: str | None
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    num_experts: int = Field(gt=0, le=256)  # expert ids travel as uint8
    num_experts_per_token: int = Field(gt=0)
    expert_intermediate_size: int = Field(gt=0)
    dense_layers: tuple[int, ...]
    dense_intermediate_size: int = Field(gt=0)
    rope_theta: float = Field(gt=0)
    rms_norm_eps: float = Field(gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> ModelSettings:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} must be a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.num_experts_per_token > self.num_experts:
            raise ValueError(f"num_experts_per_token {self.num_experts_per_token} exceeds num_experts {self.num_experts}")
        if any(not 0 <= layer < self.num_layers for layer in self.dense_layers):
            raise ValueError(f"dense_layers {list(self.dense_layers)} must lie in 0..{self.num_layers - 1}")
        return self


class WarmStartSettings(Section):
    seed: int = Field(ge=0)
    steps: int = Field(ge=0)
    batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    direct_answer_share: float = Field(ge=0, le=1)
    wrong_step_share: float = Field(ge=0, le=1)
    threads: int = Field(gt=0)


class RolloutSettings(Section):
    engine: Literal["torch", "sglang"]
    dtype: Literal["bfloat16", "float32"]
    temperature: float = Field(gt=0)
    group_size: int = Field(ge=2)
    prompts_per_step: int = Field(gt=0)
    max_response_tokens: int = Field(gt=0)
    context_length: int = Field(gt=0)
    generate_ahead: int = Field(gt=0)
    overlap: bool


class LagSettings(Section):
    """How often weights are published, in rollout batches, and how many optimizer steps a rollout batch is split into."""

    regime: Literal["synchronous", "batchwise"]
    broadcast_interval: int = Field(gt=0)
    optimizer_steps_per_rollout: int = Field(gt=0)

    def range(self) -> tuple[int, int]:
        """Smallest and largest lag in optimizer steps, the first rollout batch apart (closed form in rollout/schedule.py)."""
        first = self.optimizer_steps_per_rollout if self.regime == "batchwise" else 0
        return first, first + self.broadcast_interval * self.optimizer_steps_per_rollout - 1


class _CommonObjectiveSettings(Section):
    """The loss: what every method reads, and a section for each part, by its name.

    A cell's copy lacks the sections of the parts that its method does not have, so that changing one reruns the cells that read it.
    """

    aggregation: Literal["response_mean", "token_mean"]
    ratio_denominator: Denominator | None
    reference_kl_coefficient: float = Field(ge=0)
    reference_kl_granularity: Literal["token", "sequence"]
    entropy_coefficient: float = Field(ge=0)

    def of_part(self, part: type[Part]) -> Section | None:
        """The section of `part`; None for a part without settings. Raises ValueError where it is missing."""
        if part.Settings is None:
            return None
        section = getattr(self, part.name)
        if section is None:
            raise ValueError(f"objective.{part.name} is missing, but the method has it; add it with its defaults to config.yaml")
        return section

    def section(self, kind: type[S]) -> S:
        """The section that is a `kind`: section(SatSettings).quantile_alpha. Raises ValueError where it is missing."""
        (part,) = (part for part in all_parts() if part.Settings is kind)
        section = self.of_part(part)
        assert isinstance(section, kind)
        return section

    def for_parts(self, parts: tuple[type[Part], ...]) -> ObjectiveSettings:
        """These settings without the sections of all other parts."""
        return self.model_copy(update={part.name: None for part in all_parts() if part not in parts and part.Settings})

    @model_serializer(mode="wrap")
    def _only_what_is_there(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A part that is added later must not change what the settings of older cells say."""
        names = {part.name for part in all_parts()}
        return {name: value for name, value in dump(self).items() if value is not None or name not in names}


if TYPE_CHECKING:
    ObjectiveSettings = _CommonObjectiveSettings
else:
    ObjectiveSettings = create_model(
        "ObjectiveSettings",
        __base__=_CommonObjectiveSettings,
        **{part.name: (part.Settings | None, None) for part in all_parts() if part.Settings},
    )


class TrainerSettings(Section):
    engine: Literal["torch", "megatron"]
    steps: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    adam_eps: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    gradient_clip: float = Field(gt=0)
    micro_batch_tokens: int = Field(gt=0)
    checkpoint_interval: int = Field(gt=0)
    threads: int = Field(gt=0)


class ServerSettings(Section):
    """The SGLang servers of a cell (rollout.engine sglang). Times are limits in seconds, not expectations."""

    num_servers: int = Field(gt=0)
    tensor_parallel: int = Field(gt=0)
    memory_fraction: float = Field(gt=0, lt=1)
    max_total_tokens: int | None = Field(gt=0)
    max_running_requests: int | None = Field(gt=0)
    requests_in_flight: int = Field(gt=0)
    attention_backend: str | None
    publication: Literal["disk", "tensor", "distributed"]
    verify_interval: int = Field(gt=0)
    startup_timeout_s: float = Field(gt=0)
    stall_timeout_s: float = Field(gt=0)


class MegatronSettings(Section):
    """The layout of the Megatron-core trainer (trainer.engine megatron). Data parallelism is what the ranks leave over."""

    num_ranks: int = Field(gt=0)
    tensor_parallel: int = Field(gt=0)
    pipeline_parallel: int = Field(gt=0)
    expert_parallel: int = Field(gt=0)
    expert_tensor_parallel: int = Field(gt=0)
    dtype: Literal["bfloat16", "float32"]
    layer_spec: Literal["local", "transformer_engine"]
    distributed_optimizer: bool
    optimizer_offload: bool
    recompute: bool
    logprob_chunk_tokens: int = Field(gt=0)
    threads: int = Field(gt=0)
    startup_timeout_s: float = Field(gt=0)
    stall_timeout_s: float = Field(gt=0)

    @model_validator(mode="after")
    def _layout_is_known_to_be_right(self) -> MegatronSettings:
        model_parallel = self.tensor_parallel * self.pipeline_parallel
        if self.num_ranks % model_parallel:
            raise ValueError(
                f"num_ranks {self.num_ranks} is not a multiple of tensor_parallel x pipeline_parallel {model_parallel}"
            )
        expert_ranks = self.expert_parallel * self.expert_tensor_parallel * self.pipeline_parallel
        if self.num_ranks % expert_ranks:
            raise ValueError(f"num_ranks {self.num_ranks} is not a multiple of the {expert_ranks} ranks that share the experts")
        if self.expert_tensor_parallel == 1 and self.tensor_parallel > 1 and self.expert_parallel % self.tensor_parallel:
            raise ValueError(
                f"expert_parallel {self.expert_parallel} with tensor_parallel {self.tensor_parallel} and expert_tensor_parallel 1: "
                "the copies of an expert would drift apart; make expert_parallel a multiple of tensor_parallel"
            )
        if self.expert_tensor_parallel not in (1, self.tensor_parallel):
            raise ValueError(
                f"expert_tensor_parallel {self.expert_tensor_parallel} must be 1 or equal to tensor_parallel {self.tensor_parallel}"
            )
        return self


def _words(command: object) -> object:
    """A path as a command line of one word; anything else as it is."""
    return (command,) if isinstance(command, str) else command


CommandWords = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1), BeforeValidator(_words)]


class ClusterSettings(Section):
    """The machines of a cell. scratch: a folder on a node-local disk or in memory; null: the system's temporary folder.

    scratch_shared: whether every node of the cell finds the same folder there.
    server_python, trainer_python: the interpreters that run SGLang with lm-eval and Megatron-core, each a path or the words of a
    command that ends in one ("apptainer exec --nv cluster-gpu.sif python"); null: the one that runs the pipeline.
    """

    device: Literal["cuda", "cpu"]
    num_nodes: int = Field(gt=0)
    gpus_per_node: int = Field(ge=0)
    scratch: str | None
    scratch_shared: bool
    server_python: CommandWords | None
    trainer_python: CommandWords | None

    @property
    def server_command(self) -> tuple[str, ...]:
        """The words before the arguments of Python, where SGLang and lm-eval run."""
        return self.server_python or (sys.executable,)

    @property
    def trainer_command(self) -> tuple[str, ...]:
        """The same where Megatron-core runs."""
        return self.trainer_python or (sys.executable,)


class JobSettings(Section):
    """What SLURM is asked for, for each node of a cell's job, and how long before the time limit the cell is told to stop.

    memory_mb, max_memory_mb: the least and the most memory; on GPU nodes a cell's job asks for what the plan says between them.
    """

    time_limit_min: int = Field(gt=0)
    signal_lead_s: int = Field(gt=0)
    cpus: int = Field(gt=0)
    memory_mb: int = Field(gt=0)
    max_memory_mb: int | None = Field(gt=0)

    @model_validator(mode="after")
    def _memory_is_a_range(self) -> JobSettings:
        if self.max_memory_mb is not None and self.max_memory_mb < self.memory_mb:
            raise ValueError(
                f"max_memory_mb {self.max_memory_mb} is less than memory_mb {self.memory_mb}; raise it or lower the other"
            )
        return self

    @model_validator(mode="after")
    def _some_time_is_left(self) -> JobSettings:
        if self.signal_lead_s >= 60 * self.time_limit_min:
            raise ValueError(
                f"signal_lead_s {self.signal_lead_s} leaves nothing of time_limit_min {self.time_limit_min}; lower the former"
            )
        return self


class EvaluationSettings(Section):
    interval: int = Field(gt=0)
    num_samples: int = Field(gt=0)
    scoring_samples: int = Field(gt=0)
    temperature: float | None = Field(gt=0)
    max_response_tokens: int = Field(gt=0)


class CellGroup(Section):
    methods: tuple[str, ...]
    lags: tuple[str, ...]

    @model_validator(mode="after")
    def _known(self) -> CellGroup:
        for method in self.methods:
            if method not in METHODS:
                raise ValueError(unknown("method", method, METHODS))
        return self


class VariantSettings(CellGroup):
    """Extra rows: `methods` at `lags` with `settings` in place of the same settings of their sections, everything else equal."""

    settings: dict[Literal["objective", "rollout", "trainer"], dict[str, Any]]


class CellGroups(Section):
    table: CellGroup
    uncorrected: CellGroup
    stress: CellGroup
    ablations: CellGroup
    figure1: CellGroup


class BasePolicySettings(Section):
    """What the stage base_policy reads."""

    model: ModelSettings
    warm_start: WarmStartSettings
