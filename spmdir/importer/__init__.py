"""torch.fx graphs and exported programs → IR, and what a model says about its own shardings.

May import: core, rules, dialects, passes, torch_interop; lowering and simulator for `check=True`.
Start with importer.py.
"""
