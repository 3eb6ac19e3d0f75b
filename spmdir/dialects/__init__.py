"""The IR: the dialects `spmd` and `aten`, their attributes and types, and their text.

May import: core, pipelined, rules, reshard, search; never torch.
Start with spmd.py, the table of the dialect, and ir.py, which reads, verifies and prints a module.

value_op.py is the base class of all tensor ops. aten.py generates the classes of torch ops by name, and op_lookup.py
finds them for a context. reshard_ops.py, collectives.py, halo.py, host_ops.py and ring_ops.py contain the tensor ops of
`spmd`. mesh_op.py and size_ops.py contain the declarations of a module. context.py, op_parser.py and op_printer.py
contain the parser and the printer.
"""
