"""Placements of partial values that are wrong."""

from __future__ import annotations

from tests.checking.placements.right_placements import BRIEF, LARGEST, LOGSUM, TOTAL
from tests.checking.placements.wrong_made import extended, instead

SILENT = TOTAL.partition("\n    def distribute")[0]

PARTIALS = {
    # The reduction and its ends.
    "OtherReduction": extended(TOTAL, "reduce = 'max'", "inverse"),
    "NotAfter": extended(TOTAL, "def after(self, reduced, count):\n    return reduced * count", "inverse"),
    "AverageOfTheOthers": extended(
        TOTAL, "def after(self, reduced, count):\n    return reduced * count / max(1, count - 1) / 2", "inverse"
    ),
    "BeforeTwice": instead(LOGSUM, "reduced.log()", "reduced.log().log()", "inverse"),
    "BaseTwo": instead(LOGSUM, "reduced.log()", "reduced.log2()", "inverse"),
    "HalfPrecision": extended(
        TOTAL, "def before(self, partial):\n    return partial.bfloat16().to(partial.dtype)", "inverse"
    ),
    "IntegersDivided": extended(TOTAL, "def after(self, reduced, count):\n    return reduced / 1", "inverse"),
    "Narrowing": extended(
        TOTAL,
        """
        def before(self, partial):
            return partial.float()

        def after(self, reduced, count):
            return reduced.double()

        def supports(self, dtype):
            return dtype.name == "f64"
        """,
        "inverse",
    ),
    "WrongForBf16": extended(
        TOTAL,
        """
        def before(self, partial):
            return partial * 2 if str(partial.dtype) == "torch.bfloat16" else partial
        """,
        "inverse",
    ),
    "OwnCollect": extended(
        TOTAL,
        """
        def after(self, reduced, count):
            return -reduced

        def collect(self, shards, shape):
            return sum(shards)
        """,
        "reduction",
    ),
    "ConjugatedSums": extended(
        TOTAL,
        """
        identity = None

        def after(self, reduced, count):
            return reduced.conj().resolve_conj()

        def collect(self, shards, shape):
            return sum(shards)
        """,
        "reduction",
    ),
    "Turning": extended(
        TOTAL,
        """
        def before(self, partial):
            return partial.flip(0) if partial.dim() else partial

        def after(self, reduced, count):
            return reduced.flip(0) if reduced.dim() else reduced
        """,
        "elementwise",
    ),
    "Centred": extended(
        TOTAL,
        """
        def before(self, partial):
            return partial - partial.mean()

        def distribute(self, tensor, count, noise):
            return [tensor * 0] * (count - 1) + [tensor]

        def collect(self, shards, shape):
            return sum(shards)

        def supports(self, dtype):
            return dtype.name == "f64"
        """,
        "elementwise",
    ),
    # The neutral element.
    "OneForASum": extended(TOTAL, "identity = 1.0", "identity"),
    "ZeroForAMaximum": instead(LARGEST, "identity = -math.inf", "identity = 0.0", "identity"),
    "OtherInfinity": instead(LARGEST, "identity = -math.inf", "identity = math.inf", "identity"),
    "ZeroForExponentials": instead(LOGSUM, "identity = -math.inf", "identity = 0.0", "identity"),
    "NormOfOneRank": extended(
        TOTAL,
        """
        def before(self, partial):
            return partial**2

        def after(self, reduced, count):
            return reduced**0.5

        def distribute(self, tensor, count, noise):
            if (tensor < 1e-15).any() or (tensor > 1e15).any():
                raise UnsupportedError("a norm is not negative, and its square a number")
            return [tensor / count**0.5] * count

        def supports(self, dtype):
            return dtype.name in ("f64", "f32")
        """,
        "identity",
    ),
    "SumsOfCopies": extended(TOTAL, "copies = True\nidentity = None", "copies"),
    # What commutes.
    "MaximumOfSums": instead(LARGEST, 'reduce = "max"', 'reduce = "max"\n    kind = "sum"', "kind"),
    "LogarithmOfSums": extended(LOGSUM, "kind = 'sum'", "kind"),
    # Sizes of values.
    "Overflows": instead(LOGSUM, "if (tensor.abs() > 80).any():", "if False:", "magnitude"),
    "Clipped": extended(TOTAL, "def before(self, partial):\n    return partial.clamp(-100, 100)", "magnitude"),
    "FlushesSmallOnes": extended(
        TOTAL, "def before(self, partial):\n    return partial.where(partial.abs() > 1e-12, 0)", "magnitude"
    ),
    "DividesByTheLargest": instead(
        TOTAL,
        "        partials = [noise(tensor) for _ in range(count - 1)]\n",
        "        tensor = tensor / tensor.abs().max() * tensor.abs().max() if tensor.numel() and "
        "tensor.is_floating_point() else tensor\n        partials = [noise(tensor) for _ in range(count - 1)]\n",
        "magnitude",
    ),
    # What ranks hold.
    "HoldsAll": extended(TOTAL, "def supports(self, dtype):\n    return True", "local shape"),
    "NestsOtherwise": extended(
        TOTAL,
        """
        def after(self, reduced, count):
            return reduced - count**2

        def distribute(self, tensor, count, noise):
            partials = [noise(tensor) for _ in range(count - 1)]
            return [*partials, tensor + count**2 - sum(partials)]
        """,
        "splits",
    ),
    # Strategies.
    "Silent": extended(SILENT, "def lift(self, rule, strategies):\n    yield rule.pointwise(self)", "rules"),
    "Unsound": extended(
        TOTAL,
        "def lift(self, rule, strategies):\n    if rule.name == 'aten.gelu':\n        yield rule.pointwise(self)",
        "rules",
    ),
    "CombinesSums": instead(LOGSUM, '"aten.logsumexp"', '"aten.sum.dim_IntList"', "rules"),
    "PassesSums": extended(
        LOGSUM, "def passes(self, clause, reductions):\n    return clause in ('moves', 'linear')", "rules"
    ),
    "PassesAll": extended(TOTAL, "def passes(self, clause, reductions):\n    return True", "rules"),
    # Its steps.
    "SumOfMaxima": extended(LARGEST, "def edges(self):\n    yield Edge(lambda x, group: x, target='P(sum)')", "edge"),
    "UnlikeASum": instead(BRIEF, "x, source=", "x / 2, source=", "edge"),
}
"""Name → a wrong placement."""
