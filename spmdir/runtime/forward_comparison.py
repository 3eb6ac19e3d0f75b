"""Compare the forwards of ranks before the first rank captures one for all: state, tensors and ops.

Without this check, a rank with another model, plan or call would run a program of another model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from spmdir.core.errors import DivergenceError, Location
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.runtime.agreement import SAME
from spmdir.runtime.dry_run import DryRun
from spmdir.runtime.guards import setting_facts
from spmdir.runtime.op_record import type_text
from spmdir.runtime.state_values import text_of
from spmdir.torch_interop import pytree

_ABSENT = "absent"


@attrs.frozen(eq=False)
class ForwardFacts:
    """Facts about a forward on one rank.

    Attributes:
        texts: subject of a fact → its text.
        locations: subject of an op → location in the user's code.
    """

    texts: Mapping[str, str]
    locations: Mapping[str, Location | None]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        call: tuple[Any, Any],
        plan: ShardingPlan,
        dry_run: DryRun,
        device: torch.device,
        options: Mapping[str, Any],
    ) -> ForwardFacts:
        """Return the facts of the forward of `model` in a call.

        Args:
            dry_run: the dry run of this call. Its ops must have been recorded.
            device: the device of this rank; that of other ranks may differ in its index.
            options: name → option of the capture; options with equal texts are equal.
        """
        ops = dry_run.ops
        assert ops is not None  # recorded for this
        caches = tuple(dry_run.caches.dicts)
        facts = {
            **{name: str(value) for name, value in options.items()},
            **_tensor_facts(model),
            **_argument_facts(call),
            **_plan_facts(str(plan)),
            **{path: text for path, text in dry_run.facts.items() if not (caches and path.startswith(caches))},
            **setting_facts(dry_run.code, device),
            **{_op_subject(number): line for number, line in enumerate(ops.lines)},
            "the output": str(pytree.tree_structure(dry_run.output)),
        }
        # Ranks have devices of different indices: `cuda:1` becomes `cuda` in all texts.
        if device.index is not None:
            facts = {path: text.replace(str(device), device.type) for path, text in facts.items()}
            facts = {path: text.replace(repr(device), repr(device.type)) for path, text in facts.items()}
        return cls(facts, {_op_subject(number): location for number, location in enumerate(ops.locations)})

    def check(self, facts_of_first: Mapping[str, str], numbers: Sequence[int]) -> None:
        """Raise DivergenceError unless the texts equal those of the first rank, in the same order.

        Args:
            facts_of_first: the texts of the first rank.
            numbers: the numbers that errors print for the first rank and this one.
        """
        if list(self.texts.items()) == list(facts_of_first.items()):
            return
        # In the order of both ranks: a layer that one of them lacks comes before the ops that differ because of it.
        paths = chain.from_iterable(zip_longest(facts_of_first, self.texts))
        path = next((path for path in paths if path and facts_of_first.get(path) != self.texts.get(path)), None)
        first_number, number = numbers
        if path is None:
            raise DivergenceError(
                f"ranks {first_number} and {number} have the parts of the model in different orders; {SAME}"
            )
        texts = facts_of_first.get(path, _ABSENT), self.texts.get(path, _ABSENT)
        raise DivergenceError(
            f"ranks {first_number} and {number} of the mesh would run different programs: {path} is {texts[0]} on rank "
            f"{first_number} and {texts[1]} on rank {number}; {SAME}",
            self.locations.get(path),
        )


def _op_subject(number: int) -> str:
    """Return the subject of the fact about an op of the forward."""
    return f"op {number} of the forward"


def _tensor_facts(model: nn.Module) -> dict[str, str]:
    """Return name of a parameter or buffer → its type, or the name of the tensor that it is tied to."""
    first_names: dict[int, str] = {}
    facts = {}
    groups = {"parameter": model.named_parameters, "buffer": model.named_buffers}
    for kind, list_named in groups.items():
        for name, tensor in list_named(remove_duplicate=False):
            text = f"{type_text(tensor)}{' (trainable)' if tensor.requires_grad else ''}"
            first_name = first_names.setdefault(id(tensor), name)
            facts[f"the {kind} '{name}'"] = text if first_name == name else f"the same as '{first_name}'"
    return facts


def _argument_facts(call: tuple[Any, Any]) -> dict[str, str]:
    """Return the structure of the arguments of a call and each leaf as facts: subject → text."""
    leaves, spec = pytree.tree_flatten((call[0], dict(call[1])))
    texts = [type_text(leaf) if isinstance(leaf, Tensor) else text_of(leaf) for leaf in leaves]
    return {"the arguments": str(spec), **{f"argument {index}": text for index, text in enumerate(texts)}}


def _plan_facts(plan: str) -> dict[str, str]:
    """Return subject → sharding of each line of a plan.

    The line `x = dp: S(0)` below `[inputs]` gives {"x in the [inputs] of the plan": "dp: S(0)"}.
    """
    facts, section = {}, "the plan"
    for line in plan.splitlines():
        if line.startswith("["):
            section = f"the {line} of the plan"
        elif line:
            name, _, text = line.partition(" = ")
            facts[f"{name} in {section}"] = text
    return facts
