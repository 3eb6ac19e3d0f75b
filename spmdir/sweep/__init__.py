"""Sweeps: which mesh, recipe, recomputation and number of micro-batches train a model fastest on a cluster.

May import: core, reshard, schedule, dialects, plugins, analysis, pipeline, torch_interop, importer, plans,
runtime, report.
Start with sweep.py.
"""
