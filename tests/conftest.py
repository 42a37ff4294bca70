"""All tests: one thread for tensors, as small as they are here. Threads that wait for each other crawl on a busy machine."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, and for every process that a test starts
