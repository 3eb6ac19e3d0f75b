"""The rules of all ops, read from .rules files, and parsed on first use."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

import attrs

from spmdir.core.admitted_ops import why_not
from spmdir.core.arguments import PATH, accepts
from spmdir.core.errors import Location, ParseError, RuleError, SpmdirError, did_you_mean, flat, raise_all
from spmdir.core.limits import MISTAKES
from spmdir.core.placement.base import Placement
from spmdir.core.placement.call import Call, Literal
from spmdir.core.placement.declaration import is_local_map
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.text_file import read_text_file
from spmdir.rules.declared_rule import declared_rule
from spmdir.rules.instantiate import choose_rule, infer, instantiate
from spmdir.rules.language.checks import check, check_calls
from spmdir.rules.language.exchange_ops import EXCHANGE_OPS
from spmdir.rules.language.records import Record, Records, merge_records, read, read_strategies
from spmdir.rules.language.strategy_checks import check_strategy
from spmdir.rules.language.syntax_tree import Rule, TextStrategy
from spmdir.rules.op_rule import OpRule
from spmdir.rules.parsed_rules import PARSED
from spmdir.rules.shapes.dimension_maps import MAPS
from spmdir.rules.shapes.window_geometry import HALO_OPS
from spmdir.rules.strategies.equivalent_ops import derived_records, derived_strategy
from spmdir.rules.strategies.placement_texts import texts_of

SHOWN_NAMES = 5
"""The most names of ops in the repr of a rule set."""

PACKAGED = Path(__file__).parent / "aten"


@attrs.define
class Clock:
    """Adds up the seconds spent in its `with` blocks; nested blocks count once."""

    seconds: float = 0.0
    _depth: int = 0
    _start: float = 0.0

    def __enter__(self) -> None:
        if self._depth == 0:
            self._start = time.perf_counter()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._start


@attrs.define(frozen=True, slots=False, eq=False, repr=False)
class RuleSet:
    """The rules and text strategies of all ops, with caches of parsed rules and of instances.

    Attributes:
        records: op → its unparsed rules. The first one whose `when` clauses hold for a call is used.
        declared: op → the unparsed text strategies of the same files.
        clock: the time spent on parsing rules, instantiating them and listing their strategies.
    """

    records: Records
    declared: Records = attrs.field(factory=dict)
    _parsed: dict[str, tuple[Rule, ...]] = attrs.field(factory=dict)
    _kinds: dict[str, frozenset[str]] = attrs.field(factory=dict)
    _instantiated: dict[Call, OpRule | None] = attrs.field(factory=dict)
    _inferred: dict[Call, Call] = attrs.field(factory=dict)
    _texts: dict[tuple[str, tuple[type[Placement], ...]], tuple[TextStrategy, ...]] = attrs.field(factory=dict)
    clock: Clock = attrs.field(factory=Clock)

    def __repr__(self) -> str:
        unpackaged = [name for name, records in self.records.items() if packaged().records.get(name) != records]
        also = f", {len(unpackaged)} of them not packaged: {', '.join(unpackaged[:SHOWN_NAMES])}" if unpackaged else ""
        return f"<RuleSet of {len(self.records)} ops{also}{', …' if len(unpackaged) > SHOWN_NAMES else ''}>"

    @property
    def instances(self) -> int:
        """The number of distinct calls on which rules were instantiated."""
        return len(self._instantiated)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.records)

    def alternatives(self, name: str) -> tuple[Rule, ...]:
        """Return the rules of op `name`; the first whose `when` clauses hold is used.

        Raises:
            ParseError: a rule of that op is malformed.
        """
        if name not in self._parsed:
            rules = tuple(_checked(record) for record in self.records.get(name, ()))
            self._parsed[name] = rules
        return self._parsed[name]

    def lookup(self, name: str) -> Rule | None:
        """Return the first rule of op `name`, or None."""
        return next(iter(self.alternatives(name)), None)

    def kinds(self, name: str) -> frozenset[str]:
        """Return the kinds of all clauses in the rules of op `name`."""
        if name not in self._kinds:
            self._kinds[name] = frozenset(clause.kind for rule in self.alternatives(name) for clause in rule.clauses)
        return self._kinds[name]

    def text_strategies(self, name: str, kinds: tuple[type[Placement], ...] = ()) -> tuple[TextStrategy, ...]:
        """Return the text strategies of op `name`: those of .rules files, then those of the placement classes `kinds`.

        They include strategies of its other names, see `spmdir.rules.strategies.equivalent_ops`.

        Raises:
            ParseError, SpmdirErrors: a strategy is malformed, or does not fit the op; located.
        """
        key = (name, kinds)
        if key not in self._texts:
            sources = [self.declared, *map(texts_of, kinds)]  # each op → records
            strategies = [self._checked_strategy(record) for source in sources for record in source.get(name, ())]
            for source in sources:
                strategies += self._derived_strategies(name, source)
            self._texts[key] = tuple(dict.fromkeys(strategies))
        return self._texts[key]

    def _derived_strategies(self, name: str, declared: Records) -> Iterator[TextStrategy]:
        """Yield the strategies that `declared` has for other names of op `name`, rewritten for `name`.

        A strategy that does not fit op `name` is skipped.
        """
        if name not in self.records:
            return
        for record, equivalent in derived_records(name, declared):
            try:
                strategy = derived_strategy(record, equivalent, _parsed)
                check_strategy(strategy, self, MAPS)
            except SpmdirError:
                continue  # uses a parameter or result of the other op only; errors of its text are raised there
            yield strategy

    def _checked_strategy(self, record: Record) -> TextStrategy:
        """Parse and check the strategy of a record. If a class composes its text, errors contain the text."""
        try:
            strategy = _parsed(record)
            check_strategy(strategy, self, MAPS)
        except SpmdirError as error:
            if record.is_composed:
                where = Location(record.file, record.line, 1)
                mistakes = flat(error)
                raise_all([type(mistake)(f"'{record.text}': {mistake.message}", where) for mistake in mistakes])
            raise
        return strategy

    def parameters(self, name: str) -> tuple[tuple[str, bool], ...]:
        """Return (name, whether it is a tensor) of the parameters of op `name`; RuleError if it has no rule."""
        if name in HALO_OPS:
            return HALO_OPS[name]
        if name in EXCHANGE_OPS:
            return EXCHANGE_OPS[name]
        rule = self.lookup(name)
        if rule is None:
            raise self.missing_rule_error(name)
        return tuple((parameter.name, parameter.is_tensor) for parameter in rule.parameters)

    def missing_rule_error(self, name: str) -> RuleError:
        """Return the error of an op without a rule."""
        remedy = did_you_mean(name, self.names) or (
            ": add one in a .rules file, see docs/first-rule.md"
            if name.startswith(("aten.", "prims."))
            else ": load the plug-in or .rules file that has it, for example with --load-plugin"
        )
        return RuleError(f"op {name} has no sharding rule; expected an op with a rule{remedy}")

    def shape_arguments(self, name: str) -> frozenset[str]:
        """Return the literal arguments that list the sizes of the first result, in any rule of op `name`."""
        size_arguments: set[str] = set()
        for rule in self.alternatives(name):
            for clause in rule.of_kind("sizes"):
                size_arguments.update(clause.names)
            result_terms = [term for result in rule.results for term in result.pattern]
            for term in result_terms:
                if term.kind == "map" and MAPS[term.names[0]].sized:
                    size_arguments.add(term.names[-1])
        return frozenset(size_arguments)

    def instantiate(self, call: Call) -> OpRule | None:
        """Return the rule of `call.name` on `call`, or None if that op has no rule.

        The rule of a local map consists of the shardings among the arguments of the call.

        Raises:
            RuleError: the call does not fit the rule.
        """
        if call not in self._instantiated:
            with self.clock:
                if is_local_map(call.name):
                    self._instantiated[call] = declared_rule(call, self)
                    return self._instantiated[call]
                match = choose_rule(self.alternatives(call.name), call)
                self._instantiated[call] = None if match is None else instantiate(match[0], call, match[1], self)
        return self._instantiated[call]

    def infer_call(
        self,
        name: str,
        operands: tuple[TensorMeta, ...],
        arguments: Mapping[str, Literal],
        structure: tuple[int | tuple[int, ...], ...] | None = None,
    ) -> Call:
        """Return a call of op `name` with inferred results.

        Raises:
            RuleError: the op has no rule, or its results cannot be inferred.
        """
        call = Call(name, operands, tuple(sorted(arguments.items())), (), structure)
        if call not in self._inferred:
            self.parameters(name)  # raises a RuleError if there is no rule
            match = choose_rule(self.alternatives(name), call)
            if match is None:
                raise RuleError(
                    f"no rule of {name} fits the arguments of this call; expected a call that fits the `when` of one "
                    "of its rules: change the arguments, or add a rule"
                )
            self._inferred[call] = attrs.evolve(call, results=infer(match[0], call, match[1]))
        return self._inferred[call]

    def parse_all(self) -> Iterator[Rule]:
        """Check all rules, and return an iterator over them.

        Raises:
            ParseError: one rule is malformed.
            SpmdirErrors: several rules are malformed.
        """
        self.check(self.records)
        return (rule for name in self.records for rule in self.alternatives(name))

    def __enter__(self) -> RuleSet:
        """Use these rules for everything in the `with` block."""
        _ACTIVE.set((*_ACTIVE.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _ACTIVE.set(_ACTIVE.get()[:-1])

    def extended(self, rules: Records, strategies: Records) -> RuleSet:
        """Return a copy with more text strategies, and with `rules`, which replace the rules of the same ops."""
        return RuleSet({**self.records, **rules}, merge_records(self.declared, strategies))

    def check(self, names: Iterable[str], strategies: Records | None = None) -> None:
        """Raise the errors of the method `errors` together. Of more than MISTAKES errors, the rest is only counted."""
        errors = self.errors(names, strategies or {})
        limit_error = [MISTAKES.error(len(errors), errors[-1].location)] if len(errors) > MISTAKES.most else []
        raise_all([*errors[: MISTAKES.most], *limit_error])

    def errors(self, names: Iterable[str], strategies: Records) -> list[SpmdirError]:
        """Return all errors in the rules of the ops `names` and in `strategies`.

        These are malformed rules, rules of ops that a program may not use, calls in rewrites of ops without a rule, and
        strategies that do not fit their op.
        """
        errors: list[SpmdirError] = []
        rule_records = [record for name in names for record in self.records[name]]
        for record in rule_records:
            op = record.text.partition("(")[0]
            reason = why_not(op) if op in self.records else None
            if reason is not None:
                errors.append(ParseError(f"'{op}': {reason}", Location(record.file, record.line, 1)))
            try:
                check_calls(_checked(record), self)
            except SpmdirError as error:
                errors += flat(error)
        strategy_records = [record for records in strategies.values() for record in records]
        for record in strategy_records:
            try:
                self._checked_strategy(record)
            except SpmdirError as error:
                errors += flat(error)
        return errors

    def with_file(self, path: str | Path) -> RuleSet:
        """Return a copy with the strategies of a file and its rules, which replace those of the same ops.

        Raises:
            ParseError, SpmdirErrors: the file cannot be read, or contains malformed rules.
        """
        text = read_text_file(path, f"rules from {path}")
        rules, strategies = read(text, str(path)), read_strategies(text, str(path))
        extended = self.extended(rules, strategies)
        extended.check(rules, strategies)
        return extended


def _checked(record: Record) -> Rule:
    """Return the rule of a record: the parsed form if it is packaged, else parse and check the text."""
    parsed = PARSED.find(record.text, record.file, record.line)
    if parsed is not None:
        return parsed
    from spmdir.rules.language.parser import parse_rule  # importing lark is slow, and few programs need it

    rule = parse_rule(record.text, record.file, record.line)
    check(rule, MAPS)
    return rule


def _parsed(record: Record) -> TextStrategy:
    """Return the strategy of a record: the parsed form if it is packaged, else parse the text."""
    # A record with an indentation comes from a placement class, so it is not packaged.
    parsed = PARSED.find(record.text, record.file, record.line) if not record.indent else None
    if parsed is not None:
        return parsed
    from spmdir.rules.language.parser import parse_strategy  # as in `_checked`

    return parse_strategy(record.text, record.file, record.line, record.indent)


_ACTIVE: ContextVar[tuple[RuleSet, ...]] = ContextVar("rules", default=())
"""The rule sets of the open `with` blocks, outermost first."""


def default() -> RuleSet:
    """Return the rules of the innermost `with` block; the packaged rules outside of one."""
    active = _ACTIVE.get()
    return active[-1] if active else packaged()


@functools.cache
def packaged() -> RuleSet:
    """Return the packaged rules."""
    records: dict[str, tuple[Record, ...]] = {}
    strategies: dict[str, tuple[Record, ...]] = {}
    for path in sorted(PACKAGED.glob("*.rules")):
        text = path.read_text()
        records.update(read(text, path.name))
        strategies = merge_records(strategies, read_strategies(text, path.name))
    return RuleSet(records, strategies)


@accepts(path=PATH)
def using_rules(path: str | Path) -> RuleSet:
    """Return the rules of a file, and the packaged rules for all other ops.

    Imports, passes and simulations in a block `with using_rules(path):` use them.

    Args:
        path: a `.rules` file.

    Raises:
        SpmdirError: the file cannot be read, or is malformed; located in the file.

    Example:
        >>> with spmdir.rules.using_rules("mine.rules"):
        ...     module = spmdir.run_passes(module, "propagate")
    """
    return default().with_file(path)
