"""Import the program that one rank runs: infer the global program from local ops, collectives and input shardings.

May import: core, rules, reshard, dialects, passes, analysis, torch_interop, lowering, simulator, importer.
Start with import_ranks.py, which defines `import_ranks`. The other modules, in the order in which a graph passes them:

- eager_graphs.py: collectives that write to buffers, as in FSDP2, become functional. message_buffers.py: so do buffers.
- group_axes.py: the mesh axes of a process group.
- local_ops.py: nodes → ops of the IR with local types. Functional collectives become ops of one table.
- global_calls.py: the global type and the sharding of the results of a torch op.
- moved_elements.py: how a message packs its tensors. rank_collectives.py: the collective of the IR for a message.
- rank_lookups.py: lookups in tables whose rows are sharded.
- misplaced_operands.py: errors for ops whose operands have the wrong placement.
- interpretations.py: other interpretations of a local value, such as a constant as a shard of a larger constant.
- check_ranks.py: compare the imported program with the program of one device.
"""
