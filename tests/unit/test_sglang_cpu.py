"""The stand-ins that let an unmodified SGLang run on a CPU are never silently wrong, and never act beside CUDA."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest
import torch

from pipeline.rollout.sglang.cpu.launch import StandInFinder, install


@pytest.fixture
def stand_ins() -> Iterator[None]:
    """`sgl_kernel` and a package that nobody has, as stand-ins."""
    before = set(sys.modules)
    sys.meta_path.append(finder := StandInFinder("sgl_kernel", "sound_that_nobody_has"))
    yield
    sys.meta_path.remove(finder)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_calling_a_kernel_raises(stand_ins: None) -> None:
    kernels = importlib.import_module("sgl_kernel.flash_attn")
    assert kernels.some_kernel.variant is not None
    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.flash_attn\.some_kernel is a compiled kernel"):
        kernels.some_kernel(1, 2)


def test_an_unused_package_serves_as_base_class_annotation_and_decorator(stand_ins: None) -> None:
    package = importlib.import_module("sound_that_nobody_has")

    class Derived(package.Transform):  # type: ignore[misc]
        def apply(self, value: package.Tensor | None) -> int:  # type: ignore[name-defined]
            return 7

    decorated = package.register(Derived.apply)
    assert Derived().apply(None) == 7 and decorated is Derived.apply
    assert list(package.everything()) == [] and not package.available


def test_dunder_attributes_stay_absent(stand_ins: None) -> None:
    package = importlib.import_module("sound_that_nobody_has")
    with pytest.raises(AttributeError):
        _ = package.__wrapped__
    with pytest.raises(AttributeError):
        _ = package.thing.__wrapped__


def test_nothing_is_installed_where_cuda_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = list(sys.meta_path)
    with pytest.raises(SystemExit, match=r"set cluster\.device to cuda"):
        install()
    assert sys.meta_path == before
