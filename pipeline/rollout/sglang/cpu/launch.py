"""Run an unmodified SGLang server on a CPU: python -P launch.py ARGUMENTS OF sglang.launch_server

SGLang computes everything in plain PyTorch where its compiled kernels are missing, but it imports them, and two packages that a CPU
installation lacks, before it can know that. This file puts stand-ins in their place, and replaces the one CUDA call that recording
routed experts makes (pinning its host buffer). A stand-in is never silently wrong: calling into the kernels raises.

It acts in every process of the server, because each spawned process imports its parent's main file first. It refuses to act where a
CUDA device is visible: there the real kernels have to be used.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import runpy
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

KERNELS = "sgl_kernel"  # SGLang's compiled kernels; every wheel of them needs CUDA
UNUSED = ("torchvision", "torchaudio")  # imported for models with images and sound
PINNING = "sglang.srt.mem_cache.pool_host.common._cuda_host_register"


class Placeholder:
    """An object of a stand-in: has every attribute, may be a base class, an annotation or a decorator."""

    def __init__(self, name: str, callable_: bool) -> None:
        self._name, self._callable = name, callable_

    def __getattr__(self, attribute: str) -> Placeholder:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Placeholder(f"{self._name}.{attribute}", self._callable)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not self._callable:
            raise NotImplementedError(f"{self._name} is a compiled kernel, which a CPU does not have")
        decorates = len(arguments) == 1 and not options and callable(arguments[0])
        return arguments[0] if decorates else Placeholder(f"{self._name}()", self._callable)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __getitem__(self, key: Any) -> Placeholder:
        return self

    def __or__(self, other: Any) -> Placeholder:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False


class StandIn(types.ModuleType):
    """A module whose every attribute is a Placeholder."""

    __version__ = "0.0.0"

    def __getattr__(self, attribute: str) -> Placeholder:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Placeholder(f"{self.__name__}.{attribute}", callable_=self.__name__.partition(".")[0] != KERNELS)


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages in `names`, and everything below them, as stand-ins."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Put the stand-ins in place and register the hook. SystemExit where CUDA is visible."""
    import torch

    if torch.cuda.is_available():
        raise SystemExit("a CUDA device is visible, so SGLang's own kernels must run: set cluster.device to cuda")
    sys.meta_path.insert(0, StandInFinder(KERNELS))  # an installed CUDA build of the kernels cannot be loaded here
    sys.meta_path.append(StandInFinder(*UNUSED))  # an installed one wins
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # pyright: ignore[reportMissingImports]

    HookRegistry.register(PINNING, _pin_nothing, HookType.REPLACE)


def _pin_nothing(buffer: Any, registration_granularity_bytes: int | None = None) -> None:
    """Host memory needs no pinning where no device reads it."""


if __name__ in ("__main__", "__mp_main__"):  # the server's first process, and each that it spawns
    install()
if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")  # this file stays the main one, which children import
