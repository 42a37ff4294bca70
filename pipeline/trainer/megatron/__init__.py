"""The `megatron` trainer: Megatron-core ranks that train one policy together, behind the PolicyTrainer protocol.

trainer.py runs in the controller and starts a process per rank (rank.py), to which it talks through channel.py. A rank sets up the
layout of parallelism (layout.py), the model (model.py) with weights from Hugging Face files (names.py, slices.py), and runs passes
over packed micro-batches (packing.py, scores.py, replay.py, passes.py) behind the shared optimizer step, with Megatron's optimizer
(optimizer.py). publication.py and state.py write weights and optimizer state. Only a rank imports Megatron-core; without CUDA
cpu_adapter.py must be installed first.
"""
