"""These tests run SGLang and Megatron-core themselves, in their own environment. Where either is missing nothing is collected."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("sglang") and find_spec("megatron") else ["test_*.py"]
