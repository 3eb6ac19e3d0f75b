"""One rewrite at one op: match the left side, check the conditions, build the right side, compare the costs.

Both sides of a rewrite compute the same global value if both are well typed. The reason is that an exact step changes
only the layout of a value, and a local op computes the same value under every strategy of its rule. So the engine does
not rely on rewrites: it type-checks all ops that it builds. A step that enters or leaves a lossy placement does change
the value. The engine keeps each of these steps, on the same operand.

For example, `gather-of-slice` has the left side `all_gather (slice x on C?, A dim d) on B?, A dim d`. It matches

    %1 = spmd.slice %0 on [tp] dim 0 : tensor<16x8xf32> <tp: S(0)>
    %2 = spmd.all_gather %1 on [tp] dim 0 : tensor<16x8xf32> <>

with A = [tp], and with empty B and C. The right side is `%0`. Its sharding is that of `%2`. The rewrite removes both
ops, so it applies.
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
from spmdir.rewrites.benefit import Pricing, RewriteCost, add_costs, subtract_costs
from spmdir.rewrites.build_replacement import Builder
from spmdir.rewrites.matching import Match, find_matches
from spmdir.rewrites.replacement import (
    NewCollective,
    Node,
    existing_values,
    find_dying_ops,
    meta_at,
    new_nodes,
    sharding_at,
)
from spmdir.rewrites.rewrite_conditions import Test
from spmdir.rewrites.terms import Rewrite
from spmdir.rewrites.trace import Attempt, attempt_of


@attrs.frozen
class Candidate:
    """A well-typed right side.

    Attributes:
        replacement: the node that replaces the root.
        dying: the root, and the ops that lose their last user with it.
        before: the cost of `dying`.
        after: the cost of the new ops.
        change: `after` − `before`.
    """

    replacement: Node
    dying: list[ValueOp]
    before: RewriteCost
    after: RewriteCost
    change: RewriteCost


@attrs.frozen
class Engine:
    """Finds replacements for the ops of one function.

    Attributes:
        pricing: the prices of ops, with the mesh of the module and the rules of its ops.
        conditions: name of a condition → its test.
        on_attempt: called with each match and its outcome; None if matches are not traced.
        holds_no_more: whether rewrites are rejected that may increase the live memory of a rank.
    """

    pricing: Pricing
    conditions: Mapping[str, Test]
    on_attempt: Callable[[Attempt], None] | None = None
    holds_no_more: bool = False

    def cheapest_replacement(self, rewrite: Rewrite, root: ValueOp) -> Candidate | None:
        """Return the cheapest beneficial replacement of `root` by `rewrite`; None if there is none.

        The outcome is passed to `on_attempt`, if the left side matches.
        """
        best: Candidate | None = None
        reasons: list[str] = []
        for match in find_matches(rewrite.left, root):
            for candidate in self._candidates(rewrite, match, root, reasons):
                if best is None or _is_better(candidate.change, best.change):
                    best = candidate
        is_beneficial = best is not None and best.change.pays
        if self.on_attempt is not None and (best is not None or reasons):
            costs = (best.before, best.after) if best else None
            self.on_attempt(attempt_of(rewrite.name, root, is_beneficial, costs, reasons))
        return best if is_beneficial else None

    def _candidates(self, rewrite: Rewrite, match: Match, root: ValueOp, reasons: list[str]) -> list[Candidate]:
        """Return the well-typed right sides of a match with their costs, and append the reasons of rejections.

        A right side is rejected if f would run twice, if a lossy step would be added or removed, or if live memory may
        grow although `holds_no_more` forbids it. There is none if a condition of the rewrite fails.
        """
        builder = Builder(self.pricing.mesh, rewrite.right, match, self.pricing.rules)
        failed_condition = self._find_failed_condition(rewrite, builder)
        if failed_condition is not None:
            reasons.append(failed_condition)
            return []
        candidates: list[Candidate] = []
        for replacement in builder.replacements(root):
            dying = find_dying_ops(match.ops, replacement)
            if isinstance(match.function, AtenOp) and match.function not in dying:
                reasons.append(f"f = {match.function.name} has other users, so it would run twice")
                continue
            lossy_step = self._find_changed_lossy_step(dying, replacement)
            if lossy_step is not None:
                reasons.append(f"does not keep the lossy step {lossy_step}")
                continue
            if self.holds_no_more and self._may_hold_more(root, replacement, dying):
                reasons.append("may increase live memory; a memory limit forbids this")
                continue
            before = add_costs(self.pricing.cost_of_op(op) for op in dying)
            after = add_costs(self.pricing.cost_of_node(node) for node in new_nodes(replacement))
            candidates.append(Candidate(replacement, dying, before, after, subtract_costs(before, after)))
        if self.on_attempt is not None:
            reasons += [f"does not type-check: {rejection}" for rejection in builder.rejections]
        return candidates

    def _may_hold_more(self, root: ValueOp, replacement: Node, dying: list[ValueOp]) -> bool:
        """Return whether the live memory of a rank may grow.

        It may grow in two cases. The results of new ops are larger than those of the removed ops. Or the replacement
        has operands that `root` does not have: they stay live up to `root`, and may be larger than the removed values
        before `root`.

        Args:
            dying: the removed ops, `root` first.
        """

        def size(node: Node) -> float:
            meta, sharding = meta_at(node), sharding_at(node)
            return local_bytes(sharding, meta.shape, meta.dtype.itemsize, self.pricing.mesh)

        dying_bytes = [sum(map(size, op.results)) for op in dying]
        new_bytes = sum(map(size, new_nodes(replacement)))
        added_operands = {*existing_values(replacement)}.difference(root.operands)
        added_operand_bytes = sum(map(size, added_operands))
        return new_bytes > sum(dying_bytes) or added_operand_bytes > sum(dying_bytes[1:])

    def _find_changed_lossy_step(self, dying: list[ValueOp], replacement: Node) -> str | None:
        """Return the text of a lossy step that the replacement removes or adds; None if there is no such step.

        Args:
            dying: the ops that the replacement removes.
        """
        old_steps: Counter[tuple[Step, Node]] = Counter(
            (step, op.operands[0]) for op in dying if (step := self._lossy_step(op)) is not None
        )
        new_steps: Counter[tuple[Step, Node]] = Counter(
            (node.step, node.operand)
            for node in new_nodes(replacement)
            if isinstance(node, NewCollective) and node.step.is_lossy(self.pricing.mesh)
        )
        changed = [*(old_steps - new_steps), *(new_steps - old_steps)]
        return _step_text(changed[0][0]) if changed else None

    def _lossy_step(self, op: ValueOp) -> Step | None:
        """Return the step of `op` if it is a collective that enters or leaves a lossy placement."""
        if not isinstance(op, Collective) or not (has_lossy(op.source) or has_lossy(op.target)):
            return None
        step = op.step(self.pricing.mesh)
        return step if step.is_lossy(self.pricing.mesh) else None

    def _find_failed_condition(self, rewrite: Rewrite, builder: Builder) -> str | None:
        """Return a text on the condition that fails; None if all hold, or if f has no rule."""
        match = builder.match
        for first_name, second_name in rewrite.differ:
            value = match.bindings.get(first_name)
            if value == match.bindings.get(second_name):
                return f"condition '{first_name} != {second_name}' fails: both are {value}"
        lossy_step = next(filter(None, map(self._lossy_step, match.ops)), None) if rewrite.is_exact else None
        if lossy_step is not None:
            return f"condition 'exact' fails: {_step_text(lossy_step)} is lossy"
        for condition in rewrite.conditions:
            function, rule = match.function, builder.rule
            if isinstance(function, AtenOp) and rule and not self.conditions[condition.name](function, rule):
                return f"condition 'f {condition.name}' fails for {function.name}"
        return None


def _is_better(change: RewriteCost, best_change: RewriteCost) -> bool:
    """Return whether a change of the cost is better: beneficial changes first, then the smaller change."""
    return (not change.pays, change) < (not best_change.pays, best_change)


def _step_text(step: Step) -> str:
    return f"{step.kind} from <{step.source}> to <{step.target}>"
