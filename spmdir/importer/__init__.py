"""Import torch.fx graphs and exported programs into the IR, with the user's annotations.

May import: core, rules, dialects, passes, torch_interop, simulator; lowering and simulator for `check=True`.
Start with importer.py, which defines `import_fx`. The other modules, in the order in which a program passes them:

- read_exported.py, read_traced.py: convert an ExportedProgram or a GraphModule to a `Program` (program.py): one
  functional graph with the kinds and names of inputs and outputs. pytree_names.py: names of leaves of pytrees.
- retrace.py: trace a graph again in functional form. foreach_ops.py: replace ops on lists; as_strided.py: replace ops
  on strides; aliases.py: writes through views; running_statistics.py: writes that schemas do not declare.
- admitted_nodes.py: reject nodes; liveness.py: find live nodes; torch_errors.py: convert errors of torch.
- graph_builder.py: nodes → ops. fx_arguments.py binds a call to its schema, canonicalize.py rewrites it into the IR's
  simpler ops, decompose.py replaces an op without a rule, symbolic_sizes.py and locations.py carry sizes and locations.
- user_shardings.py: the annotation of an argument or output; updated_inputs.py: the input that an output updates.
- check_import.py: compare the imported program with the graph.
- pt2_archive.py, pt2_strings.py: check `.pt2` files before torch loads them. constrain.py: `spmdir.constrain`.
- local_map.py: `spmdir.local_map`. function_identity.py: names of functions; local_function.py: run them;
  function_ops.py: register them with torch; local_cost.py: check and count them on local shapes.
"""
