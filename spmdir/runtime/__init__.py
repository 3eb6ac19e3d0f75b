"""The entry points for real process groups: shard_module, parallelize, training_step and checkpoints.

Ranks compare their settings, programs and inputs before they run collectives; see agreement.py.

May import: core, pipelined, reshard, dialects, analysis, transforms, pipeline, passes, torch_interop, lowering,
simulator, importer, plans.
Start with set_up.py, then parallelize.py or shard_module.py.
"""
