"""Packed placements whose states do not combine, steps that keep states, and strategies as text that are wrong."""

from __future__ import annotations

from tests.checking.placements.right_placements import CHUNKED, FEEDBACK, MOMENTS, STABLE
from tests.checking.placements.wrong_made import WrongPlacement, extended, instead

_SUM = "left[1] * (left[0] - finite).exp() + right[1] * (right[0] - finite).exp()"

LOGSUMEXP = '''
    rules: ClassVar[str] = """
    aten.logsumexp: (S(dim)) -> (NAME)    when keepdim == false
        local
        top = aten.amax(self, dim, true)
        total = aten.sum.dim_IntList(aten.exp(aten.sub.Tensor(self, top)), dim)
        state = (aten.squeeze.dims(top, dim), total)
        return NAME.pack(state)
    """
'''
"""A strategy of STABLE; a combination that is of another value than the op's is found by it alone."""

JOINTS = {
    "ZeroForTheLargest": instead(STABLE, "(largest.shape, -math.inf)", "(largest.shape, 0.0)", "combine"),
    "OneForNothing": instead(STABLE, "total.new_zeros", "total.new_ones", "combine"),
    "RescaledOnce": instead(STABLE, "left[1] * (left[0] - finite).exp()", "left[1]", "combine"),
    "InfinityLessInfinity": instead(STABLE, "largest.where(largest > -math.inf, 0)", "largest", "combine"),
    "OverflowingSums": instead(
        STABLE, "largest = left[0].maximum(right[0])", "largest = left[0].maximum(right[0]) * 0", "combine"
    ),
    "TakesTheLast": instead(STABLE, "return largest, left[1] *", "return right[0], left[1] *", "combine"),
    "ThreePartsOfTwo": instead(STABLE, "return largest, left[1] *", "return largest, largest, left[1] *", "combine"),
    "MeanOfMeans": instead(MOMENTS, "share = right[2] / count.where(count > 0, 1)", "share = 0.5", "combine"),
    "NothingByNothing": instead(MOMENTS, "count.where(count > 0, 1)", "count", "combine"),
    "SquaresOfOneSide": instead(MOMENTS, "apart * apart * left[2] * share", "apart * apart * share", "combine"),
    "FinishesAcrossRows": instead(
        STABLE, "state[1].log(),", "state[1].log() - state[0].mean() + state[0].mean(0),", "finish"
    ),
    "FinishesByItself": instead(STABLE, "return (state[0] + state[1].log(),)", "return (state[0].flip(0),)", "finish"),
    "TwoResultsOfOne": instead(STABLE, "state[1].log(),)", "state[1].log(), state[0])", "finish"),
    "SumsAsTheyAre": WrongPlacement(
        "rules",
        STABLE.replace("(left[0] - finite).exp()", "1").replace("(right[0] - finite).exp()", "1") + LOGSUMEXP,
    ),
    "StartsFromZero": instead(STABLE, "value.new_ones(value.shape)", "value.new_zeros(value.shape)", "inverse"),
}
"""Name → a wrong placement."""

STATES = {
    "ForgetsWhatIsLeft": instead(FEEDBACK, '{"error": left.reshape(x.shape)}', "state", "state"),
    "AddsItTwice": instead(FEEDBACK, 'x + state["error"]', 'x + 2 * state["error"]', "state"),
    "NeverAddsIt": instead(FEEDBACK, 'x + state["error"]', 'x + 0 * state["error"]', "state"),
    "KeepsWhatItSent": instead(
        FEEDBACK, '{"error": left.reshape(x.shape)}', '{"error": wanted.reshape(x.shape)}', "state"
    ),
    "OtherStates": instead(FEEDBACK, '{"error": left', '{"rest": left', "edge"),
    "StateOfOtherShape": instead(FEEDBACK, "left.reshape(x.shape)}", "left}", "edge"),
    "SharedByMistake": instead(FEEDBACK, "EdgeState(feedback=True)", "EdgeState(shared=True)", "edge"),
    "DeclaresTooMuch": instead(FEEDBACK, "return rows * itemsize, rows * 8", "return 10**9, 10**9", "cost"),
    "IndicesForFree": instead(FEEDBACK, "return rows * itemsize, rows * 8", "return rows * itemsize, 0", "cost"),
}

TEXTS = {
    "CumsumAlongIt": extended(
        CHUNKED,
        'rules: ClassVar[str] = """\n    aten.cumsum: (NAME(0)) -> (NAME(0))    when rank(self) == 2\n"""',
        "rules",
    ),
    "SortsEachShard": extended(
        CHUNKED, 'rules: ClassVar[str] = """\n    aten.sort: (NAME(1)) -> (NAME(1), NAME(1))\n"""', "rules"
    ),
    "DoublesWhatItSplits": extended(
        CHUNKED,
        """
        rules: ClassVar[str] = \'\'\'
            aten.split_with_sizes: (NAME(dim)) -> (S(dim)\u2026)
                local
                return aten.split_with_sizes(aten.mul.Scalar(self, 2), parts(dim), dim)
        \'\'\'
        """,
        "text strategies",
    ),
    "CatKeepsTheOrder": extended(
        CHUNKED, 'rules: ClassVar[str] = """\n    aten.cat: (NAME(dim)\u2026) -> (NAME(dim))\n"""', "rules"
    ),
}
