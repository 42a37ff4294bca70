"""Lets unmodified megatron-core run on a CPU: its sources are adapted while they are imported. Nothing on disk or in torch changes.

megatron-core names the CUDA device in literals and calls torch.cuda without asking. `install` adds an import hook for
megatron.core.* that replaces in their syntax trees
    "cuda" by "cpu", "torch.cuda.FloatTensor" and its like by "torch.FloatTensor", torch.cuda.X by CpuStandIn.X, x.cuda() by x.cpu()
and a few functions that need more than that (_REPLACEMENTS). It does nothing where CUDA exists.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Callable, Sequence
from types import CodeType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_PACKAGE = "megatron.core"
_STAND_IN = "_cpu_stand_in"


def install() -> None:
    """Adapt megatron-core from now on; only where CUDA is missing, and before its first import."""
    if torch.cuda.is_available():
        return
    imported = [name for name in sys.modules if name.startswith(_PACKAGE)]
    if imported:
        raise RuntimeError(f"{imported[0]} was imported before the CPU adapter was installed; install it first")
    sys.meta_path.insert(0, _Finder())


class _Nothing:
    """A stream or an event: every method does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., _Nothing]:
        return lambda *_, **__: _Nothing()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Nothing)

    def __hash__(self) -> int:
        return 0


class CpuStandIn:
    """What adapted sources see in place of torch.cuda; names that are not here are torch.cuda's own."""

    Stream = Event = current_stream = default_stream = _Nothing

    @staticmethod
    def current_device() -> torch.device:
        return torch.device("cpu")

    @staticmethod
    def stream(_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @staticmethod
    def synchronize(*_: Any) -> None:
        pass

    @staticmethod
    def empty_cache() -> None:
        pass

    @staticmethod
    def is_current_stream_capturing() -> bool:
        return False

    @staticmethod
    def get_rng_state(*_: Any) -> Tensor:
        return torch.get_rng_state()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


class _Adapt(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if node.value == "cuda":
            return ast.copy_location(ast.Constant("cpu"), node)
        if isinstance(node.value, str) and re.fullmatch(r"torch\.cuda\.\w+Tensor", node.value):
            return ast.copy_location(ast.Constant(node.value.replace("torch.cuda.", "torch.")), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return ast.copy_location(ast.Name(_STAND_IN, ast.Load()), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            node.func.attr, node.args, node.keywords = "cpu", [], []
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        return compile(ast.fix_missing_locations(_Adapt().visit(tree)), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[_STAND_IN] = CpuStandIn()
        super().exec_module(module)
        for name, replacement in _REPLACEMENTS.get(module.__name__.removeprefix(f"{_PACKAGE}."), {}).items():
            setattr(module, name, replacement(module))


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if not fullname.startswith(_PACKAGE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def _counts_as_numpy(_: ModuleType) -> Callable[..., Any]:
    # all_to_all_single wants sizes as Python integers; megatron-core converts them only when they come from a GPU
    def maybe_move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    return maybe_move_tensor_to_cpu


def _norm_with_sequence_parallelism(_: ModuleType) -> type:
    # all that sequence parallelism needs from a norm is the mark on its weight, by which gradients are summed over ranks
    class Norm:
        def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
            norm = torch.nn.RMSNorm(hidden_size, eps=eps)
            norm.weight.sequence_parallel = config.sequence_parallel
            return norm

    return Norm


def _uneven_gather(module: ModuleType) -> Callable[..., Tensor]:
    even = module._gather_along_first_dim

    def gather(values: Tensor, group: Any, output_split_sizes: list[int] | None = None, use_global_buffer: bool = False) -> Tensor:
        if output_split_sizes is None or group.size() == 1:
            return even(values, group, output_split_sizes, use_global_buffer)
        padded = values.new_zeros(max(output_split_sizes), *values.shape[1:])  # gloo gathers equal sizes only
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in output_split_sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, output_split_sizes, strict=True)])

    return gather


def _uneven_reduce_scatter(module: ModuleType) -> Callable[..., Tensor]:
    even = module._reduce_scatter_along_first_dim

    def scatter(values: Tensor, group: Any, input_split_sizes: list[int] | None = None, use_global_buffer: bool = False) -> Tensor:
        if input_split_sizes is None or group.size() == 1:
            return even(values, group, input_split_sizes, use_global_buffer)
        total = values.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total.split(input_split_sizes)[group.rank()].contiguous()

    return scatter


def _get_rng(_: ModuleType) -> Callable[..., Tensor]:
    return lambda *_, **__: torch.get_rng_state()


def _set_rng(_: ModuleType) -> Callable[..., None]:
    return lambda state, *_, **__: torch.set_rng_state(state)


_REPLACEMENTS: dict[str, dict[str, Callable[[ModuleType], Any]]] = {
    "transformer.moe.moe_utils": {
        "maybe_move_tensor_to_cpu": _counts_as_numpy,
    },
    "transformer.torch_norm": {"WrappedTorchNorm": _norm_with_sequence_parallelism},
    "tensor_parallel.mappings": {
        "_gather_along_first_dim": _uneven_gather,
        "_reduce_scatter_along_first_dim": _uneven_reduce_scatter,
    },
    "tensor_parallel.random": {"_get_cuda_rng_state": _get_rng, "_set_cuda_rng_state": _set_rng},
}
