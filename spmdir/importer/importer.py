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
from spmdir.importer.retrace import is_exact
from spmdir.importer.symbolic_sizes import SymbolTable
from spmdir.importer.updated_inputs import updated_inputs
from spmdir.importer.user_shardings import input_shardings, like_input, output_sharding
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
    """Return the module of a traced program, with the user's shardings on its arguments and results.

    Parameters, buffers and inputs become function arguments; small tensors outside the state dict become
    constants, numbers are specialised, code that no output needs is dropped, mutations become further results.
    Sizes that the trace leaves open are symbolic; see `bind-sizes`.

    Args:
        program: what torch.export or make_fx gives; any graph of functional or mutating torch ops.
        mesh: a Mesh, or a torch DeviceMesh with named dimensions.
        plan: input name, `"input:N"`, `"input:*"` for all inputs, parameter FQN or glob → text, dict or DTensor
            placements. An axis that a sharding does not name is replicated; an argument with no sharding is left to the
            compiler. Or a ShardingPlan, whose activations were constrained while the program was captured, or its text.
        example_inputs: what to run the graph on where its nodes carry no shapes.
        out_shardings: one entry an output, in order; `"like:NAME"` is the sharding of an input, `"like:input:N"` of one
            by its position, also where the compiler decides it. Where it is None, gradients, updated parameters and
            mutations are like their input (`updates`), others are open.
        fold_views: run the pass of that name, so that each dimension behind a view can be sharded by itself.
        missing_rule: an op without a rule is replaced by the ops that torch decomposes it into, if these have rules.
            If not, it is an error ("error"), or runs replicated, of which propagate warns ("warn").
        check: run the graph and the imported program on one device on random inputs, and compare each bit of what they
            return and write, NaN as NaN. After `fold-views`, and where ops are decomposed, results may round otherwise.

    Raises:
        UnsupportedError: the program has sizes that depend on data, control flow, or something else that the IR
            cannot say.
        ShardingError, ParseError: a sharding fits no argument or is malformed.
        CheckError: `check` finds a difference.
        SpmdirError: the graph has tensors without values, so that `check` cannot run it.

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
    """Return the module that `import_fx` makes of a program that has been read already."""
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
    """Return the module that `import_fx` does, and what `check` compared last.

    Args: as of `import_fx`.
    """
    mesh = as_mesh(mesh)
    plan = as_plan(shardings, mesh)
    out_shardings = plan.out_shardings if out_shardings is None else out_shardings
    program = _read(source, example_inputs)
    if plan.activations and not any(node.target is CONSTRAIN for node in program.graph.nodes):
        raise UnsupportedError(
            "the plan lays out activations, which is done while a model is captured, and the program has no "
            "constraint; capture it within spmdir.plans.activations.constrained_activations(model, plan), or "
            "use parallelize"
        )
    module, decomposes_nothing = _module(program, mesh, plan, out_shardings, missing_rule)
    original = run_original(source, program, example_inputs) if check and not isinstance(source, Program) else None
    comparisons: list[Comparison] = []
    if original and not isinstance(source, Program):
        whole = source if isinstance(source, fx.GraphModule) else source.graph_module
        comparisons = check_import(module, original, program, decomposes_nothing and is_exact(whole, program.graph))
    if fold_views:
        with collector_paused():
            FoldViewsPass().apply(context(), module)
        if original:
            comparisons = check_import(module, original, program, exact=False)
    verify(module, (FuncOp, ConstraintOp))  # what the user said of shardings; all else is as the importer builds it
    return module, comparisons


def _module(
    program: Program,
    mesh: Mesh,
    plan: ShardingPlan,
    out_shardings: Sequence[ShardingLike | None] | None,
    missing_rule: str,
) -> tuple[ModuleOp, bool]:
    """Return the module before views are folded, and whether no op is replaced by others."""
    with collector_paused():
        symbols = SymbolTable(program.graph, program.ranges)
        arguments = [entry for entry in program.inputs if entry.is_argument]
        metas = [
            tensor_meta(entry.node.meta["val"], entry.node, symbols, node_location(entry.node)) for entry in arguments
        ]
        block = Block(arg_types=[type_of(meta) for meta in metas])
        builder = GraphBuilder(mesh, symbols, block.args, missing_rule)
        returned = _returned(program, builder, dict(zip([a.node for a in arguments], block.args, strict=True)))
        names, nodes = [_names(a) for a in arguments], [a.node.name for a in arguments]
        hidden = frozenset(a.names[0] for a in arguments if a.kind in ("tangent", "late_buffer"))
        labels = [entry.label for entry in arguments]
        given = input_shardings(plan.shardings, names, nodes, _positions(program), metas, mesh, labels, hidden)
        annotated = dict(zip(arguments, zip(metas, given, strict=True), strict=True))
        updated = dict(zip(map(id, program.outputs), updated_inputs(program), strict=True))
        wanted = _result_shardings(program, returned, out_shardings, annotated, updated, mesh)
        renewed = [value for output, value in returned if output.kind == "mutation" or updated.get(id(output))]
        note_first_casts([value for value in renewed if isinstance(value, SSAValue)], builder.rules)
        values = [value for _, value in returned if isinstance(value, SSAValue)]
        block.add_ops([*drop_unused_sizes(builder.ops), ReturnOp(*values)])
        make_names_unique(block)
        function = FuncOp(
            "main",
            (list(block.arg_types), [value.type for value in values]),
            Region(block),
            arg_attrs=ArrayAttr(
                [
                    signature_attrs(entry.names[0], entry.kind, sharding, value, plan.keep, buffer=entry.buffer)
                    for value, entry, sharding in zip(block.args, arguments, given, strict=True)
                ]
            ),
            res_attrs=ArrayAttr(
                [
                    signature_attrs(output.names[0] if output.names else None, output.kind, sharding, like=like)
                    for (output, value), (sharding, like) in zip(returned, wanted, strict=True)
                    if isinstance(value, SSAValue)
                ]
            ),
        )
        _say_literals(function, returned)
        sizes = symbols.sizes()
        module = ModuleOp([MeshOp.build(mesh), *([SizesOp.build(sizes)] if sizes.symbols else []), function])
    return module, builder.is_exact


def _read(source: Any, example_inputs: Sequence[Any] | None) -> Program:
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


Returned = list[tuple[Output, Any]]


def _returned(program: Program, builder: GraphBuilder, values: dict[fx.Node, Any]) -> Returned:
    """Return each output with its value: user outputs in order, then mutations."""
    for entry in program.inputs:
        if entry.node in values:
            keep_name(values[entry.node], _value_name(entry))
        elif isinstance(entry.value, Tensor):
            if entry.node.users:
                values[entry.node] = builder.constant(entry.node, entry.value)
        else:
            value = entry.node.meta.get("val")
            known = not is_open(value)
            values[entry.node] = entry.value if known else builder.symbols.number(value, f"'{entry.node.name}'", None)
    builder.run(program.graph, values)
    pairs = [(o, values[o.value] if isinstance(o.value, fx.Node) else o.value) for o in program.outputs]
    copied = [entry for entry in program.inputs if entry.node in builder.mutations]
    pairs += [(Output(e.node, e.names, "mutation", e.names[0]), builder.mutations[e.node]) for e in copied]
    return sorted(pairs, key=lambda pair: pair[0].kind == "mutation")


def _names(entry: Input) -> tuple[str, ...]:
    """Return what plans may call an argument: a parameter goes by the name that it has in a step's state too."""
    own = (f"parameters.{entry.names[0]}",) if entry.kind == "parameter" else ()
    return (*entry.names, *own)


def _value_name(entry: Input) -> str:
    """Return the name of an argument as text can give it; the leaf of a pytree has its path."""
    return re.sub(r"[^\w.]", "_", entry.names[0])


def _positions(program: Program) -> list[int | None]:
    """Return the place of each argument among the user inputs."""
    user = [entry.node for entry in program.inputs if entry.kind in ("input", "literal")]
    place = {node: index for index, node in enumerate(user)}
    return [place.get(entry.node) for entry in program.inputs if entry.is_argument]


def _result_shardings(
    program: Program,
    returned: Returned,
    out_shardings: Sequence[ShardingLike | None] | None,
    arguments: dict[Input, tuple[TensorMeta, Sharding | None]],
    updated: Mapping[int, Input | None],
    mesh: Mesh,
) -> list[tuple[Sharding | None, str | None]]:
    """Return what each result is wanted in, and the name of the argument that it is like where that is open.

    It is what the user said, else what the input has whose new value or gradient it is.
    """
    count = sum(output.kind == "output" for output, _ in returned)
    if out_shardings is not None and len(out_shardings) != count:
        raise ShardingError(
            f"out_shardings has {len(out_shardings)} entries; the program has {count} outputs: "
            "give one each, None for those that are left open"
        )
    told = [*(out_shardings if out_shardings is not None else [None] * count), *[None] * (len(returned) - count)]
    by_name = {name: entry for entry in reversed(arguments) for name in entry.names}
    by_name |= {entry.names[0]: entry for entry in arguments}
    places = zip(arguments, _positions(program), strict=True)
    by_name |= {f"input:{place}": entry for entry, place in places if place is not None}
    wanted: list[tuple[Sharding | None, str | None]] = []
    for index, (output, value) in enumerate(returned):
        entry = by_name.get(output.names[0]) if output.kind == "mutation" else updated.get(id(output))
        if told[index] is not None and not isinstance(value, SSAValue):
            raise ShardingError(f"out_shardings[{index}] is given for an output that is not a tensor: {value!r}")
        meta = meta_of(value.type) if isinstance(value, SSAValue) else None
        if told[index] is not None:
            assert meta is not None
            entry = like_input(told[index], index, by_name)
            sharding = output_sharding(arguments[entry][1] if entry else told[index], meta, mesh, index)
        else:
            sharding = arguments[entry][1] if entry else None
            if sharding and sharding.partial and output.kind != "mutation":
                # A guess may not make an output partial that the caller takes for the value.
                entry = sharding = None
        is_like = entry and meta and meta.shape == arguments[entry][0].shape and (not sharding or sharding.open_axes)
        wanted.append((sharding, entry.names[0] if entry and is_like else None))
    return wanted


def _say_literals(function: FuncOp, returned: Returned) -> None:
    """Record the flat outputs where some are literals: `"#N"` is result N of the function, `"=s0"` a size."""
    user = [value for output, value in returned if output.kind == "output"]
    if all(isinstance(value, SSAValue) for value in user):
        return
    flat, tensors = [], 0
    for value in user:
        text = isinstance(value, str) and value[:1] in ("#", "=")
        if text or not (is_symbolic(value) or isinstance(value, (SSAValue, bool, int, float, str, type(None)))):
            raise UnsupportedError(f"the program returns {value!r}; expected tensors, numbers, plain strings and None")
        flat.append(f"#{tensors}" if isinstance(value, SSAValue) else f"={value}" if is_symbolic(value) else value)
        tensors += isinstance(value, SSAValue)
    function.attributes["spmd.outputs"] = ArgumentsAttr((("outputs", tuple(flat)),))
