"""The results of `explain`, and their text."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.errors import Location, printable
from spmdir.core.html_text import ShownAsText
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.time_text import time_text

MAX_LISTED = 4
"""The number of equal values that are listed, and of values at each end of a long path."""


@attrs.frozen
class Choice:
    """The strategy of an op on one mesh axis, and the next best strategy.

    Attributes:
        axis: the mesh axis.
        chosen: the strategy.
        alternative: the strategy that the op gets if the chosen one is forbidden; empty if there is none.
        seconds: the objective with the alternative; None if there is none.
        reasons: the reasons why there is no alternative.
        requirement: a requirement of the alternative, such as " that shards it"; empty if there is none.
    """

    axis: str
    chosen: str
    alternative: str = ""
    seconds: float | None = None
    reasons: tuple[str, ...] = ()
    requirement: str = ""

    def text(self, seconds: float) -> str:
        """Return the strategy and the alternative; `seconds` is the objective of the decision."""
        if self.seconds is None:
            return "; ".join([f"strategy {self.chosen}", f"no alternative{self.requirement}", *self.reasons])
        objective = _objective_text(self.seconds, seconds)
        return f"strategy {self.chosen}; next best{self.requirement} {self.alternative}: {objective}"


@attrs.frozen
class Source:
    """An annotation that a placement follows from.

    Attributes:
        name: the annotated value.
        placement: the annotated placement on the axis.
        through: the values on the path from the annotation to the placement, in order.
        without: the placement if the annotation leaves the axis open.
        seconds: the objective then.
    """

    name: str
    placement: str
    through: tuple[str, ...]
    without: str
    seconds: float

    def text(self, seconds: float) -> str:
        """Return the annotation, and the decision without it; `seconds` is the objective of the decision."""
        through = f", through {_chain(self.through)}" if self.through else ""
        without = f"without it {self.without}: {_objective_text(self.seconds, seconds)}"
        return f"{self.name}, annotated {self.placement}{through}; {without}"


@attrs.frozen
class AxisReason:
    """The reason for the placement of a value on one mesh axis.

    Attributes:
        placement: the placement.
        choice: the strategy of the producer.
        sources: the annotations that the placement follows from, the nearest first.
    """

    placement: str
    choice: Choice
    sources: tuple[Source, ...]


@attrs.frozen
class UserReason:
    """The reason why a user needs a value in a sharding.

    Attributes:
        name: its first result, or a description of a result of the function.
        op: its op, or `result` for a result of the function.
        location: its location in the source.
        choices: its strategies on the axes that are resharded.
        times: the number of equal users in equal layers.
    """

    name: str
    op: str
    location: Location | None
    choices: tuple[Choice, ...]
    times: int = 1


@attrs.frozen
class Delivery:
    """A sharding that users need of a value, and the reshard that these users share.

    Attributes:
        needs: the sharding.
        steps: the steps of the reshard, as text; empty if the value is produced in this sharding.
        wire_bytes: the bytes that the busiest rank sends.
        seconds: the time of the reshard.
        users: the users that need this sharding.
    """

    needs: str
    steps: tuple[str, ...]
    wire_bytes: float
    seconds: float
    users: tuple[UserReason, ...]

    def lines(self, seconds: float) -> list[str]:
        """Return the lines of text; `seconds` is the objective of the decision."""
        sent = f"{', '.join(self.steps)}, {size_text(self.wire_bytes)} sent, {time_text(self.seconds)}"
        lines = [f"  used as <{self.needs}>: {sent}" if self.steps else "  used without a reshard"]
        for user in self.users:
            op_text = "" if user.op == "result" else f" = {user.op}{_location_text(user.location)}"
            lines.append(f"    by {user.name}{op_text}{f' × {user.times}' if user.times > 1 else ''}")
            lines += [f"      {choice.axis}: {choice.text(seconds)}" for choice in user.choices]
        return lines


@attrs.frozen
class Explanation(ShownAsText):
    """The reasons for the sharding of a value and for its reshards.

    Attributes:
        name: the value, as in the text.
        op: the op that produces it, or `argument`.
        location: the location of the op in the source; None if unknown.
        times: the number of equal values of equal layers that share this decision.
        meta: its global shape and element type.
        sharding: its sharding.
        local_bytes: the size of its shard on the first rank.
        axes: the reason for each placement, one for each mesh axis.
        deliveries: the shardings that users need.
        seconds: the objective.
        equal_values: names of equal values of other layers whose separate decisions are the same.
    """

    name: str
    op: str
    location: Location | None
    times: int
    meta: TensorMeta
    sharding: Sharding
    local_bytes: float
    axes: tuple[AxisReason, ...]
    deliveries: tuple[Delivery, ...]
    seconds: float
    equal_values: tuple[str, ...] = ()

    def __str__(self) -> str:
        # The value, then a block for each mesh axis with its strategy and annotations, then the users of each sharding.
        equal_text = f", one of {self.times} equal values" if self.times > 1 else ""
        local_size = f"{size_text(self.local_bytes)} of {size_text(self.meta.bytes)}"
        lines = [f"{self.name} = {self.op} : {self.meta} <{self.sharding}>{_location_text(self.location)}{equal_text}"]
        if self.equal_values:
            lines.append(f"  same decision for {_listed(self.equal_values)}; alternatives are those of {self.name}")
        lines += [f"  a rank has {local_size}; objective {time_text(self.seconds)}"]
        for axis in self.axes:
            lines += [f"  {axis.choice.axis}: {axis.placement}", f"    {axis.choice.text(self.seconds)}"]
            lines += [f"    from {source.text(self.seconds)}" for source in axis.sources]
            if not axis.sources and axis.placement != "R":
                lines.append("    from no annotation")
        return "\n".join([*lines, *(line for axis in self.deliveries for line in axis.lines(self.seconds))])


@attrs.frozen
class Explanations(ShownAsText):
    """The explanations of the selected values.

    Attributes:
        values: the values with the longest reshards, the longest first.
        left_out: the number of selected values that are not explained. Equal values of equal layers count once.
        differing: names of the values of a decided text whose shardings differ from the new decision.
    """

    values: tuple[Explanation, ...]
    left_out: int = 0
    differing: tuple[str, ...] = ()

    def __str__(self) -> str:
        notes = [f"{self.left_out} more; select them by name, or raise --most"] if self.left_out else []
        if self.differing:
            names = _listed(self.differing)
            notes.append(
                f"decided again: {names} got another sharding than in the text; the explanations are of this decision"
            )
        return "\n\n".join([*map(str, self.values), *notes])


def percent_text(before: float, after: float) -> str:
    """Return the change in percent, such as `+1.5 %`; never `-0.0 %`."""
    # Adding 0.0 turns -0.0 into 0.0.
    return f"{round(100 * (after / before - 1), 1) + 0.0:+.1f} %"


def _listed(names: Sequence[str]) -> str:
    """Return `%a, %b, %c, %d and 2 more`."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{', '.join(names[:MAX_LISTED])}{more}"


def _chain(names: Sequence[str]) -> str:
    """Return the names of a path of values; of a long path, those at both ends."""
    left_out = len(names) - 2 * MAX_LISTED
    if left_out < 2:  # "1 more" is no shorter than the name
        return ", ".join(names)
    return ", ".join([*names[:MAX_LISTED], f"{left_out} more", *names[-MAX_LISTED:]])


def _location_text(location: Location | None) -> str:
    """Return the file and line after two spaces; empty for no location."""
    return f"  {printable(location.file)}:{location.line}" if location is not None else ""


def _objective_text(seconds: float, decided_seconds: float) -> str:
    """Return the objective of an alternative, and its change from that of the decision in percent."""
    return f"objective {time_text(seconds)}, {percent_text(decided_seconds, seconds)}"
