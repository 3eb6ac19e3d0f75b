"""What one rewrite makes of one op: match, check the conditions, build, compare the costs.

Both sides of a rewrite give the same global value if both are well typed, because an exact step changes how a value is
laid out and not the value, and a local op computes the same value under every strategy of its rule. So the engine type
checks what it builds, with the transitions of the collectives and the rules of the ops, and trusts no rewrite. A step
that enters or leaves a lossy placement does change the value: the engine keeps each of them, on its operand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import attrs

from spmdir.dialects.aten import AtenOp
from spmdir.dialects.collectives import Collective
from spmdir.dialects.reshard_ops import has_lossy
from spmdir.dialects.value_op import ValueOp
from spmdir.reshard.cost import local_bytes
from spmdir.reshard.steps import Step
from spmdir.rewrites.benefit import Pricing, RewriteCost, change, total
from spmdir.rewrites.building import Builder
from spmdir.rewrites.matching import Match, matches
from spmdir.rewrites.replacement import (
    NewCollective,
    Node,
    dying_ops,
    existing_values,
    meta_at,
    new_nodes,
    sharding_at,
)
from spmdir.rewrites.rewrite_conditions import Test
from spmdir.rewrites.terms import Rewrite
from spmdir.rewrites.trace import Attempt, attempt_of


@attrs.frozen
class Candidate:
    """A right side that is well typed.

    Attributes:
        dying: the ops that go with the root.
        before: the cost of `dying`.
        after: the cost of what is made.
        change: how `after` differs from `before`.
    """

    replacement: Node
    dying: list[ValueOp]
    before: RewriteCost
    after: RewriteCost
    change: RewriteCost


@attrs.frozen
class Engine:
    """Finds what rewrites make of the ops of one function.

    Attributes:
        pricing: what ops cost; with the mesh of the module, and the rules of its ops.
        conditions: the tests of the conditions by name.
        on_attempt: called with each match of a rewrite and what became of it; None if matches are not traced.
        holds_no_more: whether only rewrites are made by which a rank holds no more.
    """

    pricing: Pricing
    conditions: Mapping[str, Test]
    on_attempt: Callable[[Attempt], None] | None = None
    holds_no_more: bool = False

    def cheaper(self, rewrite: Rewrite, root: ValueOp) -> Candidate | None:
        """Return the cheapest form that `rewrite` gives `root`; None if that does not pay."""
        best: Candidate | None = None
        reasons: list[str] = []
        for found in matches(rewrite.left, root):
            for candidate in self._candidates(rewrite, found, root, reasons):
                if best is None or (not candidate.change.pays, candidate.change) < (not best.change.pays, best.change):
                    best = candidate
        pays = best is not None and best.change.pays
        if self.on_attempt is not None and (best is not None or reasons):
            costs = (best.before, best.after) if best else None
            self.on_attempt(attempt_of(rewrite.name, root, pays, costs, reasons))
        return best if pays else None

    def _candidates(self, rewrite: Rewrite, found: Match, root: ValueOp, reasons: list[str]) -> list[Candidate]:
        """Return the well-typed right sides of a match; `reasons` gets why there are none, where somebody asks."""
        builder = Builder(self.pricing.mesh, rewrite.right, found, self.pricing.rules)
        if failed := self._failed_condition(rewrite, builder):
            reasons.append(failed)
            return []
        candidates: list[Candidate] = []
        for replacement in builder.replacements(root):
            dying = dying_ops(found.ops, replacement)
            if isinstance(found.function, AtenOp) and found.function not in dying:
                reasons.append(f"f = {found.function.name} has other users, so it would run twice")
                continue
            if lost := self._changed_lossy_step(dying, replacement):
                reasons.append(f"does not keep {lost}, which is lossy")
                continue
            if self.holds_no_more and self._may_hold_more(root, replacement, dying):
                reasons.append("a rank may hold more, and the memory of the machine is a limit")
                continue
            before = total(self.pricing.of_op(op) for op in dying)
            after = total(self.pricing.of_node(node) for node in new_nodes(replacement))
            candidates.append(Candidate(replacement, dying, before, after, change(before, after)))
        if self.on_attempt is not None:
            reasons += [f"does not type-check: {rejection}" for rejection in builder.rejections]
        return candidates

    def _may_hold_more(self, root: ValueOp, replacement: Node, dying: list[ValueOp]) -> bool:
        """Return whether what is made, or what is used by it and was not by the root, is larger than what goes."""

        def size(node: Node) -> float:
            meta, sharding = meta_at(node), sharding_at(node)
            return local_bytes(sharding, meta.shape, meta.dtype.itemsize, self.pricing.mesh)

        gone = [sum(map(size, op.results)) for op in dying]
        kept = {*existing_values(replacement)}.difference(root.operands)
        return sum(map(size, new_nodes(replacement))) > sum(gone) or sum(map(size, kept)) > sum(gone[1:])

    def _changed_lossy_step(self, dying: list[ValueOp], replacement: Node) -> str | None:
        """Return a lossy step that is removed, and not made again on its operand, or added; None if all stay."""
        nodes = (node for node in new_nodes(replacement) if isinstance(node, NewCollective))
        old: Counter[tuple[Step, Node]] = Counter(
            (step, op.operands[0]) for op in dying if (step := self._lossy_step(op)) is not None
        )
        new = Counter((node.step, node.operand) for node in nodes if node.step.is_lossy(self.pricing.mesh))
        changed = next(iter((old - new) + (new - old)), None)
        return None if changed is None else _shown(changed[0])

    def _lossy_step(self, op: ValueOp) -> Step | None:
        """Return the step of `op` if it is a collective that enters or leaves a lossy placement."""
        if not isinstance(op, Collective) or not (has_lossy(op.source) or has_lossy(op.target)):
            return None
        step = op.step(self.pricing.mesh)
        return step if step.is_lossy(self.pricing.mesh) else None

    def _failed_condition(self, rewrite: Rewrite, builder: Builder) -> str | None:
        """Return the condition that fails; None if all hold, or f has no rule to ask."""
        found = builder.found
        for one, other in rewrite.differ:
            value = found.bindings.get(one)
            if value == found.bindings.get(other):
                return f"condition '{one} != {other}' fails: both are {value}"
        lossy = next(filter(None, map(self._lossy_step, found.ops)), None) if rewrite.is_exact else None
        if lossy is not None:
            return f"condition 'exact' fails: {_shown(lossy)} is lossy"
        for condition in rewrite.conditions:
            function, rule = found.function, builder.rule
            if isinstance(function, AtenOp) and rule and not self.conditions[condition.name](function, rule):
                return f"condition 'f {condition.name}' fails for {function.name}"
        return None


def _shown(step: Step) -> str:
    return f"{step.kind} from <{step.source}> to <{step.target}>"
