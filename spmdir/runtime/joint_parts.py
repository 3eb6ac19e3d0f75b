"""A lowered module with its gradients. The first rank lowers it, and the other ranks read its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from spmdir.core.errors import UnsupportedError
from spmdir.core.garbage_collector import collector_paused
from spmdir.dialects import ir
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import copy_name
from spmdir.dialects.values import function_attrs, signature_kind, signature_name
from spmdir.pipeline.pipeline import Pipeline
from spmdir.runtime.joint_call import JointCall
from spmdir.runtime.rank_programs import Localize
from spmdir.runtime.signature import Result, Signature, read_signature
from spmdir.transforms.split_backward import split_backward


@attrs.frozen(eq=False)
class JointParts:
    """A lowered module, equal on all ranks.

    Attributes:
        outline: the result of `outline` for the module before lowering.
        forward, backward: the two parts of the program of a rank.
        saved: the number of results of the forward that the backward takes.
    """

    outline: ModuleOp
    forward: ModuleOp
    backward: ModuleOp
    saved: int

    @classmethod
    def of(cls, module: ModuleOp, localize: Localize, call: JointCall, pipeline: Pipeline) -> JointParts:
        """Return the parts of a decided module.

        Args:
            localize: lowers the module to the program of one rank.

        Raises:
            SpmdirError: the module cannot be lowered.
        """
        with pipeline.rules:
            signature = read_signature(ir.main_function(module), call.returned)
            rank_module = localize(module)
            function = ir.main_function(rank_module)
            if any(signature_kind(function, "arg_attrs", argument.index) == "state" for argument in function.args):
                raise UnsupportedError(
                    "the program keeps a state between steps, which shard_module does not support; "
                    "expected placements without state: change the plan, or use parallelize with "
                    "training_step",
                    location_of(function),
                )
            output_count = sum(isinstance(leaf, Result) for leaf in signature.outputs[: call.outputs])
            # The backward is the part that computes gradients, and new values of buffers that it writes to.
            late_results = [result.index for argument, result in signature.updates if argument.buffer is not None]
            parts = split_backward(
                rank_module, [*range(output_count, output_count + len(call.gradients)), *late_results]
            )
        return cls(outline(module), parts.forward, parts.backward, parts.saved)

    def signature(self, call: JointCall) -> Signature:
        """Return the signature of both parts together."""
        return read_signature(ir.main_function(self.outline), call.returned)

    def data(self) -> dict[str, Any]:
        """Return the parts as JSON data: texts and a number."""
        texts = {name: ir.print_ir(part, debuginfo=True) for name, part in self._modules().items()}
        return {**texts, "saved": self.saved}

    @classmethod
    def read(cls, data: Mapping[str, Any], pipeline: Pipeline) -> JointParts:
        """Return the parts for the result of `data`; the rank that printed them has verified them."""
        with pipeline.rules, collector_paused():
            parts = (ir.read_printed(data[name]) for name in ("outline", "forward", "backward"))
            return cls(*parts, saved=data["saved"])

    def _modules(self) -> Mapping[str, ModuleOp]:
        """Return name of a field → its module, for the fields that are modules."""
        return {"outline": self.outline, "forward": self.forward, "backward": self.backward}


def outline(module: ModuleOp) -> ModuleOp:
    """Return a copy of `module` with its declarations and function signature, but without the function body."""
    function = ir.main_function(module)
    body = Block(arg_types=[argument.type for argument in function.args])
    body.add_op(ReturnOp())
    declaration = FuncOp(function.sym_name.data, function.function_type, Region(body), function.sym_visibility)
    declaration.properties = dict(function.properties)
    declaration.attributes = dict(function.attributes)
    for new, old in zip(body.args, function.args, strict=True):
        copy_name(new, old)
    results = []
    for index in range(len(function.function_type.outputs.data)):
        attributes = function_attrs(function, "res_attrs", index)
        if signature_kind(function, "res_attrs", index) == "mutation":
            attributes["spmd.name"] = StringAttr(signature_name(function, "res_attrs", index))
        results.append(DictionaryAttr(attributes))
    declaration.res_attrs = ArrayAttr(results)
    declarations = [op.clone() for op in module.body.block.ops if not isinstance(op, FuncOp)]
    return ModuleOp([*declarations, declaration])
