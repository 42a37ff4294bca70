"""All tests: one thread for tensors, as small as they are here. Threads that wait for each other crawl on a busy machine.

Several processes share the tests (`make test`): files go to whoever is free, those of a folder with common fixtures together, and
those that take longest first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

TOGETHER = ("workflow", "engines")  # folders whose tests share what takes long to make, the slower first

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and for every process that a test starts


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        folder = item.path.parent.name
        item.add_marker(pytest.mark.xdist_group(folder if folder in TOGETHER else item.path.stem))
    items.sort(key=lambda item: _turn(item.path.parts))  # stable: within a folder the order stays


def _turn(parts: Sequence[str]) -> int:
    return next((turn for turn, folder in enumerate(TOGETHER) if folder in parts), len(TOGETHER))
