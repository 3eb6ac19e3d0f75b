"""torch.fx graphs and exported programs → IR, and what a model says about its own shardings.

May import: core, rules, dialects, passes, torch_interop, simulator; lowering and simulator for `check=True`.
Start with importer.py, which is `import_fx`; the rest in the order in which a program goes through it:

- read_exported.py, read_traced.py: an ExportedProgram or a GraphModule → program.py, one functional graph whose
  placeholders and outputs say what they are. pytree_names.py names inputs and outputs by their place in pytrees.
- retrace.py: when a graph is traced again to be functional. foreach_ops.py, as_strided.py: ops on lists and by strides
  as ops that the IR has; aliases.py: writes through views; running_statistics.py: writes that schemas do not declare.
- admitted_nodes.py: which nodes are an error; liveness.py: which nodes count; torch_errors.py: torch's errors as ours.
- graph_builder.py: nodes → ops. fx_arguments.py binds a call to its schema, canonicalize.py rewrites it into the IR's
  simpler ops, decompose.py replaces an op without a rule, symbolic_sizes.py and locations.py carry sizes and locations.
- user_shardings.py: which user annotation an argument or output has; updated_inputs.py: which input an output updates.
- check_import.py: the check that the import computes what the graph does.
- pt2_archive.py, pt2_strings.py: `.pt2` files, looked into before torch loads them. constrain.py: `spmdir.constrain`.
"""
