"""What the engine sends and starts, held against SGLang's own parser and request classes. No server runs."""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts import Cell
from pipeline.config import load_settings
from pipeline.records import Request, SamplingKey
from pipeline.rollout.engine import SamplingSettings
from pipeline.rollout.sglang.client import LOAD, generate_body
from pipeline.rollout.sglang.cpu.launch import UNUSED, StandInFinder
from pipeline.rollout.sglang.server import LOOPBACK, arguments
from tests.unit.test_sglang_publication import Held, publish


@pytest.fixture(scope="module", autouse=True)
def importable():
    """SGLang's argument and request classes without its kernels, and without the packages that only its servers stand in for."""
    before = os.environ.get("SGLANG_USE_CPU_ENGINE")
    os.environ["SGLANG_USE_CPU_ENGINE"] = "0"
    sys.meta_path.append(finder := StandInFinder(*UNUSED))
    yield
    sys.meta_path.remove(finder)
    del os.environ["SGLANG_USE_CPU_ENGINE"]
    os.environ |= {"SGLANG_USE_CPU_ENGINE": before} if before is not None else {}


@pytest.mark.parametrize("preset", ["full", "rehearsal"])
def test_sglang_understands_the_command_line_as_it_is_meant(preset: str, tmp_path: Path) -> None:
    from sglang.srt.server_args import prepare_server_args

    settings = load_settings(overrides={"preset": preset}).cell(Cell("grpo-r3", "8", 0))
    key_file = tmp_path / "key.yaml"
    key_file.write_text("api-key: 0123abcd\n", encoding="utf-8")
    read = prepare_server_args(arguments(settings, tmp_path, LOOPBACK, 31000, key_file, routed_experts=True, text=False))
    assert settings.servers is not None and settings.cluster is not None
    assert (read.model_path, read.host, read.port, read.api_key) == (str(tmp_path), "127.0.0.1", 31000, "0123abcd")
    assert (read.device, read.dtype, read.tp_size) == (
        settings.cluster.device,
        settings.rollout.dtype,
        settings.servers.tensor_parallel,
    )
    assert (read.context_length, read.max_total_tokens) == (settings.rollout.context_length, settings.servers.max_total_tokens)
    assert read.mem_fraction_static == (0.85 if preset == "full" else None)
    assert (read.skip_tokenizer_init, read.enable_return_routed_experts, read.weight_version) == (True, True, "none")
    scoring = prepare_server_args(arguments(settings, tmp_path, LOOPBACK, 31000, None, routed_experts=False, text=True))
    assert (scoring.skip_tokenizer_init, scoring.enable_return_routed_experts, scoring.api_key) == (False, False, None)


def test_sglang_takes_every_field_of_a_generation() -> None:
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import TOP_K_ALL, SamplingParams

    request = Request(np.array([3, 4, 5], dtype=np.int32), SamplingKey(0, "train", 1, 2, 3))
    body = generate_body(request, SamplingSettings(0.95, 40, 64, True), (1,), 64)
    read = GenerateReqInput(**body)  # an unknown field is a TypeError
    read.normalize_batch_and_arguments()
    assert (read.input_ids, read.return_logprob, read.return_routed_experts) == ([3, 4, 5], True, True)
    sampling = SamplingParams(**body["sampling_params"])
    sampling.verify(64)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.95, 1.0, TOP_K_ALL, 0.0)
    assert (sampling.max_new_tokens, sampling.stop_token_ids, sampling.n) == (40, {1}, 1)


def test_sglang_s_schedulers_tell_the_load_that_is_asked_for() -> None:
    from sglang.srt.managers.load_snapshot import LoadSnapshot

    assert set(LOAD) <= LoadSnapshot().to_dict({"core"}).keys()


@pytest.mark.parametrize("route", ["disk", "tensor", "distributed"])
def test_sglang_takes_every_field_of_a_publication(route: str, tmp_path: Path) -> None:
    from pydantic import TypeAdapter
    from sglang.srt.managers import io_struct

    classes: dict[str, Any] = {
        "/update_weights_from_disk": io_struct.UpdateWeightFromDiskReqInput,
        "/update_weights_from_tensor": io_struct.UpdateWeightsFromTensorReqInput,
        "/update_weights_from_distributed": io_struct.UpdateWeightsFromDistributedReqInput,
        "/begin_weight_update": io_struct.BeginWeightUpdateReqInput,
        "/end_weight_update": io_struct.EndWeightUpdateReqInput,
        "/init_weights_update_group": io_struct.InitWeightsUpdateGroupReqInput,
        "/destroy_weights_update_group": io_struct.DestroyWeightsUpdateGroupReqInput,
        "/weights_checker": io_struct.CheckWeightsReqInput,
    }
    held = Held()
    publish(tmp_path, route, True, held)
    sent = [(path, body) for path, body in held.requests if path != "/model_info"]
    assert {path for path, _ in sent} <= classes.keys()
    for path, body in sent:
        assert body.keys() <= set(classes[path].__struct_fields__)
        TypeAdapter(classes[path]).validate_python(body)
