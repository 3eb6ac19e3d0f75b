"""`import_fx`: a single-device torch.fx program → a module of the IR."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from spmdir.core.arguments import FLAG, MISSING_RULE, OUT_SHARDINGS, accepts, instance
from spmdir.core.errors import ShardingError, UnsupportedError
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.mesh import MESH, Mesh, as_mesh
from spmdir.core.placement.sharding import Sharding, ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan, as_plan
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.symbolic.expressions import is_symbolic
from spmdir.dialects.attributes import ArgumentsAttr, meta_of, type_of
from spmdir.dialects.caches import CACHE_KIND as CACHE
from spmdir.dialects.caches import WRITE
from spmdir.dialects.cast_first import note_first_casts
from spmdir.dialects.ir import context, verify
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.names import keep_name, make_names_unique
from spmdir.dialects.reshard_ops import ConstraintOp
from spmdir.dialects.size_ops import SizesOp, drop_unused_sizes
from spmdir.dialects.values import signature_attrs
from spmdir.importer.admitted_nodes import reject_effects
from spmdir.importer.check_import import Comparison, check_import, run_original
from spmdir.importer.constrain import CONSTRAIN
from spmdir.importer.graph_builder import GraphBuilder, tensor_meta
from spmdir.importer.locations import node_location
from spmdir.importer.program import Input, Output, Program
from spmdir.importer.read_exported import read_exported
from spmdir.importer.read_traced import read_traced
from spmdir.importer.retrace import is_bitwise_exact
from spmdir.importer.symbolic_sizes import SymbolTable
from spmdir.importer.updated_inputs import find_updated_inputs
from spmdir.importer.user_shardings import (
    check_kept_names,
    check_output_sharding,
    find_like_input,
    match_input_shardings,
)
from spmdir.passes.fold_experts import FoldExpertsPass
from spmdir.passes.fold_views import FoldViewsPass
from spmdir.torch_interop.symbolic_numbers import is_open


@accepts(
    mesh=MESH,
    out_shardings=OUT_SHARDINGS,
    example_inputs=instance(list, tuple, expected="a list of the graph's inputs").optional,
    fold_views=FLAG,
    missing_rule=MISSING_RULE,
    check=FLAG,
)
def import_fx(
    program: fx.GraphModule | torch.export.ExportedProgram,
    mesh: Mesh,
    plan: Mapping[str, ShardingLike | None] | ShardingPlan | str | None = None,
    example_inputs: Sequence[Any] | None = None,
    *,
    out_shardings: Sequence[ShardingLike | None] | None = None,
    fold_views: bool = True,
    missing_rule: Literal["warn", "error"] = "warn",
    check: bool = False,
) -> ModuleOp:
    """Import a traced program, with the user's shardings on its arguments and results.

    Parameters, buffers and inputs become function arguments, and mutations become further results. Small tensors
    outside the state dict become constants. Python numbers are specialised, and dead code is dropped. Dynamic sizes
    become symbolic sizes; see `bind-sizes`.

    Args:
        program: the result of torch.export or make_fx. Its ops may be functional or in-place.
        mesh: a Mesh, or a torch DeviceMesh with named dimensions.
        plan: key → text, dict or DTensor placements. A key is the name of an input, `"input:N"`, `"input:*"` for all
            inputs, the FQN of a parameter, or a glob. Unlisted axes are replicated. The compiler decides arguments
            without a sharding. Alternatively a ShardingPlan or its text. The activations of a ShardingPlan must have
            been constrained during the capture.
        example_inputs: inputs to run the graph on, if its nodes have no shapes.
        out_shardings: one entry for each output, in order. `"like:NAME"` is the sharding of an input, and
            `"like:input:N"` that of input N, even if the compiler decides it. None gives gradients, updated parameters
            and mutations the sharding of their input, and leaves other outputs to the compiler.
        fold_views: run the pass `fold-views`. Dimensions that a view merges can then be sharded separately.
        missing_rule: the treatment of ops without a rule that do not decompose into ops with rules: an error
            ("error"), or a replicated execution with a warning of `propagate` ("warn").
        check: run the graph and the imported program on one device on random inputs, and require results and written
            values that are equal in each bit. Results may round differently after `fold-views`, and if ops are
            decomposed.

    Returns:
        A module with the function `main`.

    Raises:
        UnsupportedError: the IR cannot express the program: sizes depend on data, it has control flow, …
        ShardingError: a sharding matches no argument, or does not fit its argument.
        ParseError: a sharding is malformed.
        CheckError: `check` finds a difference.
        SpmdirError: `check` cannot run the graph, because some of its tensors have no values.

    Example:
        >>> program = torch.export.export(model, (x,))
        >>> module = spmdir.import_fx(program, spmdir.Mesh({"tp": 4}), {"up.weight": "tp: S(0)"})
    """
    return import_compared(program, mesh, plan, out_shardings, example_inputs, fold_views, missing_rule, check)[0]


def import_program(
    program: Program,
    mesh: Mesh,
    plan: ShardingPlan,
    out_shardings: Sequence[ShardingLike | None] | None,
    missing_rule: Literal["warn", "error"],
) -> ModuleOp:
    """Import a program that has already been read."""
    return import_compared(program, mesh, plan, out_shardings, missing_rule=missing_rule)[0]


def import_compared(
    source: fx.GraphModule | torch.export.ExportedProgram | Program,
    mesh: Mesh,
    shardings: Mapping[str, ShardingLike | None] | ShardingPlan | str | None = None,
    out_shardings: Sequence[ShardingLike | None] | None = None,
    example_inputs: Sequence[Any] | None = None,
    fold_views: bool = True,
    missing_rule: Literal["warn", "error"] = "warn",
    check: bool = False,
) -> tuple[ModuleOp, list[Comparison]]:
    """Import a program, and return (module, the comparisons of its last check).

    Arguments are those of `import_fx`. A `Program` that has already been read is not checked. The module is checked
    before and after `fold-views`; the comparisons are those of the later check, and empty without `check`.
    """
    mesh = as_mesh(mesh)
    plan = as_plan(shardings, mesh)
    out_shardings = plan.out_shardings if out_shardings is None else out_shardings
    program = _read_program(source, example_inputs)
    if plan.activations and not any(node.target is CONSTRAIN for node in program.graph.nodes):
        raise UnsupportedError(
            "the plan has shardings of activations, but the program has no constraints; expected a program captured "
            "with them: capture it within spmdir.plans.activations.constrained_activations(model, plan), or use "
            "parallelize"
        )
    module, keeps_all_ops = _build_module(program, mesh, plan, out_shardings, missing_rule)
    original = run_original(source, program, example_inputs) if check and not isinstance(source, Program) else None
    comparisons: list[Comparison] = []
    if original and not isinstance(source, Program):
        graph_module = source if isinstance(source, fx.GraphModule) else source.graph_module
        comparisons = check_import(
            module, original, program, keeps_all_ops and is_bitwise_exact(graph_module, program.graph)
        )
    with collector_paused():
        FoldExpertsPass().apply(context(), module)
    if fold_views:
        with collector_paused():
            FoldViewsPass().apply(context(), module)
        if original:
            comparisons = check_import(module, original, program, is_exact=False)
    verify(module, (FuncOp, ConstraintOp))  # only these ops have user annotations; the importer builds the others valid
    return module, comparisons


def _build_module(
    program: Program,
    mesh: Mesh,
    plan: ShardingPlan,
    out_shardings: Sequence[ShardingLike | None] | None,
    missing_rule: str,
) -> tuple[ModuleOp, bool]:
    """Return (the module before `fold-views`, whether no op was decomposed).

    The arguments are those of `import_compared`, after their conversion.
    """
    with collector_paused():
        # The ops, on the arguments of the function.
        symbols = SymbolTable(program.graph, program.ranges)
        arguments = [entry for entry in program.inputs if entry.is_argument]
        metas = [
            tensor_meta(entry.node.meta["val"], entry.node, symbols, node_location(entry.node)) for entry in arguments
        ]
        block = Block(arg_types=[type_of(meta) for meta in metas])
        builder = GraphBuilder(mesh, symbols, block.args, missing_rule)
        nodes = [entry.node for entry in arguments]
        output_values = _build_outputs(program, builder, dict(zip(nodes, block.args, strict=True)))
        # The shardings of arguments and results, from the plan.
        names, node_names = [_plan_names(entry) for entry in arguments], [node.name for node in nodes]
        hidden = frozenset(entry.names[0] for entry in arguments if entry.kind in ("tangent", "late_buffer"))
        # Plans refer to inputs by position: `positions` has the index of each argument among the user inputs.
        labels, positions = [entry.label for entry in arguments], _positions(program)
        shardings = match_input_shardings(plan.shardings, names, node_names, positions, metas, mesh, labels, hidden)
        check_kept_names(plan, names)
        annotations = dict(zip(arguments, zip(metas, shardings, strict=True), strict=True))
        updated_inputs = dict(zip(map(id, program.outputs), find_updated_inputs(program), strict=True))
        result_shardings = _find_result_shardings(
            program, output_values, out_shardings, annotations, updated_inputs, mesh
        )
        updates = [
            value for output, value in output_values if output.kind == "mutation" or updated_inputs.get(id(output))
        ]
        note_first_casts([value for value in updates if isinstance(value, SSAValue)], builder.rules)
        # The function, with names, kinds and shardings as attributes, and the module.
        values = [value for _, value in output_values if isinstance(value, SSAValue)]
        block.add_ops([*drop_unused_sizes(builder.ops), ReturnOp(*values)])
        make_names_unique(block)
        function = FuncOp(
            "main",
            (list(block.arg_types), [value.type for value in values]),
            Region(block),
            arg_attrs=ArrayAttr(
                [
                    signature_attrs(
                        entry.names[0],
                        _kind(entry, value),
                        sharding,
                        value,
                        plan.kept_axes(value_names),
                        buffer=entry.buffer,
                    )
                    for value, entry, sharding, value_names in zip(block.args, arguments, shardings, names, strict=True)
                ]
            ),
            res_attrs=ArrayAttr(
                [
                    signature_attrs(output.names[0] if output.names else None, output.kind, sharding, like=like)
                    for (output, value), (sharding, like) in zip(output_values, result_shardings, strict=True)
                    if isinstance(value, SSAValue)
                ]
            ),
        )
        _record_literal_outputs(function, output_values)
        sizes = symbols.collect_sizes()
        module = ModuleOp([MeshOp.build(mesh), *([SizesOp.build(sizes)] if sizes.symbols else []), function])
    return module, builder.is_exact


def _read_program(source: Any, example_inputs: Sequence[Any] | None) -> Program:
    """Return the program of a graph of torch.export or make_fx, with a check that its ops have no side effects."""
    if isinstance(source, Program):
        return source
    if isinstance(source, torch.export.ExportedProgram):
        reject_effects(source.graph_module)
        return read_exported(source)
    if isinstance(source, fx.GraphModule):
        reject_effects(source)
        return read_traced(source, example_inputs)
    raise UnsupportedError(
        f"cannot import an object of type {type(source).__name__}; expected an fx.GraphModule or an ExportedProgram: "
        "export the model with torch.export.export, or trace the function with make_fx"
    )


OutputValues = list[tuple[Output, Any]]


def _build_outputs(program: Program, builder: GraphBuilder, values: dict[fx.Node, Any]) -> OutputValues:
    """Build the ops of the program, and return pairs (output, its value): user outputs in order, then mutations.

    A value is an SSA value, a symbolic size, or a literal.


    Args:
        values: placeholder → argument of the function.
    """
    for entry in program.inputs:
        if entry.node in values:
            keep_name(values[entry.node], _value_name(entry))
        elif isinstance(entry.value, Tensor):
            if entry.node.users:
                values[entry.node] = builder.build_constant(entry.node, entry.value)
        else:
            value = entry.node.meta.get("val")
            is_number = is_open(value)
            values[entry.node] = (
                builder.symbols.convert(value, f"'{entry.node.name}'", None) if is_number else entry.value
            )
    builder.build(program.graph, values)
    pairs: OutputValues = []
    for output in program.outputs:
        pairs.append((output, values[output.value] if isinstance(output.value, fx.Node) else output.value))
    for entry in program.inputs:
        if entry.node in builder.mutations:
            output = Output(entry.node, entry.names, "mutation", entry.names[0])
            pairs.append((output, builder.mutations[entry.node]))
    return sorted(pairs, key=lambda pair: pair[0].kind == "mutation")


def _kind(entry: Input, argument: SSAValue) -> str:
    """Return the attribute `spmd.kind` of an argument: that of its input, but a buffer for `cache.write` is a cache."""
    is_cache = any(use.operation.name == WRITE and use.index == 0 for use in argument.uses)
    return CACHE if entry.kind == "buffer" and is_cache else entry.kind


def _plan_names(entry: Input) -> tuple[str, ...]:
    """Return the names by which plans may refer to an argument.

    In the state of a training step, the name of a parameter starts with `parameters.`.
    """
    return (*entry.names, f"parameters.{entry.names[0]}") if entry.kind == "parameter" else entry.names


def _value_name(entry: Input) -> str:
    """Return the name of an argument without characters that the text of the IR does not allow."""
    return re.sub(r"[^\w.]", "_", entry.names[0])


def _positions(program: Program) -> list[int | None]:
    """Return the index of each argument among the user inputs; None for other arguments."""
    user = [entry.node for entry in program.inputs if entry.kind in ("input", "literal")]
    position = {node: index for index, node in enumerate(user)}
    return [position.get(entry.node) for entry in program.inputs if entry.is_argument]


def _find_result_shardings(
    program: Program,
    output_values: OutputValues,
    out_shardings: Sequence[ShardingLike | None] | None,
    arguments: dict[Input, tuple[TensorMeta, Sharding | None]],
    updated_inputs: Mapping[int, Input | None],
    mesh: Mesh,
) -> list[tuple[Sharding | None, str | None]]:
    """Return a pair for each result: its sharding, and the name of the argument that it is to be sharded like.

    The sharding is that of `out_shardings`, or else that of the input whose new value or gradient the result is; None
    if the compiler decides it. The name is set only if the compiler still decides the sharding of this argument,
    completely or on open axes, and the shapes are equal. It is None otherwise.

    Args:
        arguments: argument → its shape and sharding.
        updated_inputs: id of an output → the input whose new value or gradient it is.
    """
    count = sum(output.kind == "output" for output, _ in output_values)
    if out_shardings is not None and len(out_shardings) != count:
        raise ShardingError(
            f"out_shardings has {len(out_shardings)} entries; expected {count}, one for each output of the program: "
            "pass None for an output that the compiler decides"
        )
    mutation_count = len(output_values) - count
    entries = [*(out_shardings or [None] * count), *([None] * mutation_count)]  # one for each result
    # If two arguments have one name, the first argument wins. The preferred name of an argument wins over other names.
    by_name = {name: argument for argument in reversed(arguments) for name in argument.names}
    by_name |= {argument.names[0]: argument for argument in arguments}
    positions = zip(arguments, _positions(program), strict=True)
    by_name |= {f"input:{position}": argument for argument, position in positions if position is not None}
    result_shardings: list[tuple[Sharding | None, str | None]] = []
    for index, ((output, value), entry) in enumerate(zip(output_values, entries, strict=True)):
        if entry is not None and not isinstance(value, SSAValue):
            raise ShardingError(
                f"out_shardings[{index}] is for output {value!r}, which is not a tensor; expected None: replace "
                "this entry"
            )
        meta = meta_of(value.type) if isinstance(value, SSAValue) else None
        if entry is not None:
            assert meta is not None
            like = find_like_input(entry, index, by_name)
            sharding = check_output_sharding(arguments[like][1] if like else entry, meta, mesh, index)
        else:
            like = by_name.get(output.names[0]) if output.kind == "mutation" else updated_inputs.get(id(output))
            sharding = arguments[like][1] if like else None
            if sharding and sharding.partial and output.kind != "mutation":
                # Without an annotation, the caller expects the complete value.
                like = sharding = None
        has_shape_of_like = like is not None and meta is not None and meta.shape == arguments[like][0].shape
        is_decided_later = not sharding or bool(sharding.open_axes)
        like_name = like.names[0] if like and has_shape_of_like and is_decided_later else None
        result_shardings.append((sharding, like_name))
    return result_shardings


def _record_literal_outputs(function: FuncOp, output_values: OutputValues) -> None:
    """If some outputs are not tensors, list all outputs in the attribute `spmd.outputs` of `function`.

    In the list, `"#N"` is result N of the function, `"=s0"` a symbolic size, and any other entry a literal. A string
    that starts with `#` or `=` would be ambiguous, and is rejected.

    Raises:
        UnsupportedError: an output is neither a tensor nor a literal that the list can contain.
    """
    values = [value for output, value in output_values if output.kind == "output"]
    if all(isinstance(value, SSAValue) for value in values):
        return
    entries, tensor_count = [], 0
    for value in values:
        is_ambiguous = isinstance(value, str) and value[:1] in ("#", "=")
        if isinstance(value, SSAValue):
            entries.append(f"#{tensor_count}")
            tensor_count += 1
        elif is_symbolic(value):
            entries.append(f"={value}")
        elif isinstance(value, (bool, int, float, str, type(None))) and not is_ambiguous:
            entries.append(value)
        else:
            raise UnsupportedError(
                f"the program returns {value!r}; expected tensors, numbers, plain strings and None: return only these"
            )
    function.attributes["spmd.outputs"] = ArgumentsAttr((("outputs", tuple(entries)),))
