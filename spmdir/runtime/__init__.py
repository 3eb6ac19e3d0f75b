"""Front doors to real process groups: parallelize, tensor_parallel, training_step, and agreement between ranks.

May import: everything below, to importer and simulator.
Start with parallelize.py.
"""
