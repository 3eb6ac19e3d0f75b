"""The rules of all ops, read from .rules files and parsed only when asked for."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

import attrs

from spmdir.core.admission import why_not
from spmdir.core.arguments import PATH, accepts
from spmdir.core.errors import Location, ParseError, RuleError, SpmdirError, did_you_mean, flat, raise_all
from spmdir.core.limits import MISTAKES
from spmdir.core.placement.base import Placement
from spmdir.core.placement.call import Call, Literal
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.text_file import read_text_file
from spmdir.rules.instantiate import chosen, infer, instantiate
from spmdir.rules.language.checks import check, check_calls
from spmdir.rules.language.records import Record, Records, merged, read, read_strategies
from spmdir.rules.language.strategy_checks import check_strategy
from spmdir.rules.language.syntax_tree import Rule, TextStrategy
from spmdir.rules.op_rule import OpRule
from spmdir.rules.parsed_rules import PARSED
from spmdir.rules.shapes.maps import MAPS
from spmdir.rules.shapes.window_geometry import HALO_OPS
from spmdir.rules.strategies.equivalent_ops import derived_records, derived_strategy
from spmdir.rules.strategies.placement_texts import texts_of

SHOWN_NAMES = 5
"""How many names of ops the repr of a rule set shows."""

PACKAGED = Path(__file__).parent / "aten"


@attrs.define
class Clock:
    """The seconds spent in its `with` blocks; those inside others count once."""

    seconds: float = 0.0
    _depth: int = 0

    def __enter__(self) -> None:
        self._depth += 1
        self.seconds -= time.perf_counter() if self._depth == 1 else 0

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self.seconds += time.perf_counter() if not self._depth else 0


@attrs.define(frozen=True, slots=False, eq=False, repr=False)
class RuleSet:
    """Op name → the records of its alternatives, in order; caches what it parses and instantiates.

    Attributes:
        records: the rules.
        declared: op → the strategies that stand beside the rules.
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
        own = [name for name, records in self.records.items() if packaged().records.get(name) != records]
        also = f", {len(own)} of them not packaged: {', '.join(own[:SHOWN_NAMES])}" if own else ""
        return f"<RuleSet of {len(self.records)} ops{also}{', …' if len(own) > SHOWN_NAMES else ''}>"

    @property
    def instances(self) -> int:
        """Return how many different calls rules were instantiated on."""
        return len(self._instantiated)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.records)

    def alternatives(self, name: str) -> tuple[Rule, ...]:
        """Return the rules of op `name`; the first whose `when` clauses hold counts.

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
        """Return the kinds of the clauses that rules of op `name` have: what no call of it is without one of them."""
        if name not in self._kinds:
            self._kinds[name] = frozenset(clause.kind for rule in self.alternatives(name) for clause in rule.clauses)
        return self._kinds[name]

    def text_strategies(self, name: str, kinds: tuple[type[Placement], ...] = ()) -> tuple[TextStrategy, ...]:
        """Return the strategies of op `name` that are written as text: those beside rules, then those of `kinds`.

        Those of other ops are among them that compute the same, see `spmdir.rules.strategies.equivalent_ops`.

        Raises:
            ParseError, SpmdirErrors: one is malformed, or does not fit the op; located.
        """
        key = (name, kinds)
        if key not in self._texts:
            records = (*self.declared.get(name, ()), *(r for kind in kinds for r in texts_of(kind).get(name, ())))
            own = (self._strategy(record) for record in records)
            others = (
                derived
                for declared in (self.declared, *map(texts_of, kinds))
                for derived in self._derived(name, declared)
            )
            self._texts[key] = tuple(dict.fromkeys((*own, *others)))
        return self._texts[key]

    def _derived(self, name: str, declared: Records) -> Iterator[TextStrategy]:
        """Yield the strategies of other ops that are offered for op `name` and fit it."""
        for record, equivalent in derived_records(name, declared) if name in self.records else ():
            try:
                strategy = derived_strategy(record, equivalent, _parsed)
                check_strategy(strategy, self, MAPS)
            except SpmdirError:
                continue  # written for what only the other op has; an error of the text is raised for that op
            yield strategy

    def _strategy(self, record: Record) -> TextStrategy:
        try:
            strategy = _parsed(record)
            check_strategy(strategy, self, MAPS)
        except SpmdirError as error:
            if record.is_composed:
                where = Location(record.file, record.line, 1)
                found = flat(error)
                raise_all([type(one)(f"'{record.text}': {one.message}", where) for one in found])
            raise
        return strategy

    def parameters(self, name: str) -> tuple[tuple[str, bool], ...]:
        """Return (name, whether it is a tensor) of the parameters of op `name`."""
        if name in HALO_OPS:
            return HALO_OPS[name]
        rule = self.lookup(name)
        if rule is None:
            raise RuleError(f"no rule for {name}{did_you_mean(name, self.names)}")
        return tuple((p.name, p.is_tensor) for p in rule.parameters)

    def shape_arguments(self, name: str) -> frozenset[str]:
        """Return the literal arguments of op `name` that hold the sizes of its first result, by one of its rules."""
        rules = self.alternatives(name)
        listed = (n for rule in rules for clause in rule.of_kind("sizes") for n in clause.names)
        terms = (term for rule in rules for result in rule.results for term in result.pattern)
        mapped = (term.names[-1] for term in terms if term.kind == "map" and MAPS[term.names[0]].sized)
        return frozenset((*listed, *mapped))

    def instantiate(self, call: Call) -> OpRule | None:
        """Return the rule of `call.name` on `call`, or None if that op has no rule.

        Raises:
            RuleError: the call does not fit the rule.
        """
        if call not in self._instantiated:
            with self.clock:
                found = chosen(self.alternatives(call.name), call)
                self._instantiated[call] = None if found is None else instantiate(found[0], call, found[1], self)
        return self._instantiated[call]

    def infer_call(
        self,
        name: str,
        operands: tuple[TensorMeta, ...],
        arguments: Mapping[str, Literal],
        structure: tuple[int | tuple[int, ...], ...] | None = None,
    ) -> Call:
        """Return the call of op `name`, its results inferred.

        Raises:
            RuleError: no rule, or the results cannot be inferred from it.
        """
        call = Call(name, operands, tuple(sorted(arguments.items())), (), structure)
        if call not in self._inferred:
            self.parameters(name)
            found = chosen(self.alternatives(name), call)
            if found is None:
                raise RuleError(f"no rule of {name} is for these arguments")
            self._inferred[call] = attrs.evolve(call, results=infer(found[0], call, found[1]))
        return self._inferred[call]

    def parse_all(self) -> Iterator[Rule]:
        """Return every rule.

        Raises:
            SpmdirErrors: all malformed rules.
        """
        self.check(self.records)
        return (rule for name in self.records for rule in self.alternatives(name))

    def __enter__(self) -> RuleSet:
        """Make these the rules that everything in the `with` block goes by."""
        _ACTIVE.set((*_ACTIVE.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _ACTIVE.set(_ACTIVE.get()[:-1])

    def extended(self, rules: Records, strategies: Records) -> RuleSet:
        """Return this set with `rules`, which replace those of the same ops, and beside them `strategies`."""
        return RuleSet({**self.records, **rules}, merged(self.declared, strategies))

    def check(self, names: Iterable[str], strategies: Records | None = None) -> None:
        """Raise what is wrong with the rules of the ops `names` and with `strategies`, together, up to a limit."""
        errors = self.errors(names, strategies or {})
        beyond = [MISTAKES.error(len(errors), errors[-1].location)] if len(errors) > MISTAKES.most else []
        raise_all([*errors[: MISTAKES.most], *beyond])

    def errors(self, names: Iterable[str], strategies: Records) -> list[SpmdirError]:
        """Return all that is wrong with the rules of the ops `names` and with `strategies`."""
        errors: list[SpmdirError] = []
        for record in (record for name in names for record in self.records[name]):
            name = record.text.partition("(")[0]
            if (why := why_not(name) if name in self.records else None) is not None:
                errors.append(ParseError(f"'{name}': {why}", Location(record.file, record.line, 1)))
            try:
                check_calls(_checked(record), self)
            except SpmdirError as error:
                errors += flat(error)
        for record in (record for records in strategies.values() for record in records):
            try:
                self._strategy(record)
            except SpmdirError as error:
                errors += flat(error)
        return errors

    def with_file(self, path: str | Path) -> RuleSet:
        """Return this set with the rules of a file, which replace those of the same ops, and with its strategies.

        Raises:
            ParseError, SpmdirErrors: the file cannot be read or holds malformed rules.
        """
        text = read_text_file(path, f"rules from {path}")
        rules, strategies = read(text, str(path)), read_strategies(text, str(path))
        extended = self.extended(rules, strategies)
        extended.check(rules, strategies)
        return extended


def _checked(record: Record) -> Rule:
    kept = PARSED.find(record.text, record.file, record.line)
    if kept is not None:
        return kept
    from spmdir.rules.language.parser import parse_rule  # lark costs most of the start-up, and few programs need it

    rule = parse_rule(record.text, record.file, record.line)
    check(rule, MAPS)
    return rule


def _parsed(record: Record) -> TextStrategy:
    kept = PARSED.find(record.text, record.file, record.line) if not record.indent else None
    if kept is not None:
        return kept
    from spmdir.rules.language.parser import parse_strategy  # as in `_checked`

    return parse_strategy(record.text, record.file, record.line, record.indent)


_ACTIVE: ContextVar[tuple[RuleSet, ...]] = ContextVar("rules", default=())


def default() -> RuleSet:
    """Return the rules in whose `with` block this is called, or else those that come with spmdir."""
    active = _ACTIVE.get()
    return active[-1] if active else packaged()


@functools.cache
def packaged() -> RuleSet:
    """Return the rules that come with spmdir."""
    records: dict[str, tuple[Record, ...]] = {}
    strategies: dict[str, tuple[Record, ...]] = {}
    for path in sorted(PACKAGED.glob("*.rules")):
        text = path.read_text()
        records.update(read(text, path.name))
        strategies = merged(strategies, read_strategies(text, path.name))
    return RuleSet(records, strategies)


@accepts(path=PATH)
def using_rules(path: str | Path) -> RuleSet:
    """Return the rules of a file and, for all other ops, those that come with spmdir.

    `with using_rules(path):` makes them the rules that imports, passes and simulations in the block go by.

    Args:
        path: of a `.rules` file.

    Raises:
        SpmdirError: the file cannot be read, or is malformed; with the place in it.

    Example:
        >>> with spmdir.rules.using_rules("mine.rules"):
        ...     module = spmdir.run_passes(module, "propagate")
    """
    return default().with_file(path)
