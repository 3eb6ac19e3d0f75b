"""The IR: the dialects `spmd` and `aten`, their attributes and types, and their text.

May import: core, rules, reshard, search; never torch.
Start with spmd.py, the table of the dialect, and ir.py, which reads, verifies and prints a module.

aten.py makes the classes of torch ops by name, named.py finds them for a context. value_op.py is the form that all
tensor ops have; reshard_ops.py, collectives.py and halo.py are those of `spmd`; mesh_op.py and sizes.py
declare what the module is about; context.py, op_parser.py and
op_printer.py hold the parser and the printer.
"""
