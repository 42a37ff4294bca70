"""Process-wide CPU settings for the torch engines: threads, memory allocator, denormals."""

from __future__ import annotations

import ctypes

import torch

# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_SETTINGS = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 256 * 2**20))


def configure_cpu(threads: int) -> None:
    """Use `threads` threads, keep freed memory in the process, and flush denormal numbers to zero.

    By default glibc returns every large tensor to the kernel when it is freed and faults its pages in again for the next one, which
    costs more than the arithmetic at this model's size. Other C libraries keep their own behaviour.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in _SETTINGS:
            mallopt(parameter, value)
