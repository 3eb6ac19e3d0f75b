"""Ranks that do not keep step are found, and what each collective does is exact."""

import pytest
import torch
from torch import fx

from spmdir.core.errors import DivergenceError, Location, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.lowering.site import WAIT, functional
from spmdir.simulator.lockstep import run_alone, run_lockstep

MESH = Mesh({"dp": 2, "tp": 2})


def program(*steps, wait=True):
    """x → each (functional collective, arguments) in turn; a step that is a plain function is applied."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for step in steps:
        if isinstance(step, tuple):
            value = graph.call_function(step[0], (value, *step[1:]))
            value.meta["location"] = Location("model.py", 7, 3)
            value = graph.call_function(WAIT, (value,)) if wait else value
        else:
            value = graph.call_function(step, (value,))
    graph.output((value,))
    return fx.GraphModule(torch.nn.Module(), graph)


def run(programs, inputs=None):
    inputs = inputs or [[torch.full((4,), float(rank))] for rank in range(4)]
    return [outputs[0] for outputs in run_lockstep(programs, inputs, MESH)]


def reduce_over(axes, op="sum"):
    return (functional.all_reduce.default, op, f"mesh:{axes}")


def test_groups_are_the_ranks_that_differ_along_the_axes():
    assert [int(x[0]) for x in run([program(reduce_over("tp"))] * 4)] == [1, 1, 5, 5]
    assert [int(x[0]) for x in run([program(reduce_over("dp"))] * 4)] == [2, 4, 2, 4]
    assert [int(x[0]) for x in run([program(reduce_over("dp,tp", "max"))] * 4)] == [3, 3, 3, 3]


def test_results_of_different_ranks_share_no_memory():
    a, b, *_ = run([program(reduce_over("tp"))] * 4)
    a.zero_()
    assert b[0] == 1


def test_ranks_that_reach_different_collectives_diverge_at_that_place():
    gather = (functional.all_gather_into_tensor.default, 2, "mesh:tp")
    with pytest.raises(DivergenceError, match=r"is issued by rank 0 while rank 3 issues .*all_gather") as caught:
        run([program(reduce_over("tp"))] * 3 + [program(gather)])
    assert str(caught.value).startswith("model.py:7:3: error: ")


def test_ranks_that_reach_different_axes_diverge():
    with pytest.raises(DivergenceError, match=r"rank 1 issues .* over \['dp'\]"):
        run([program(reduce_over("tp")), program(reduce_over("dp"))] * 2)


def test_a_rank_that_ends_while_others_wait_for_it_diverges():
    with pytest.raises(DivergenceError, match="never reached by rank 2, which has ended"):
        run([program(reduce_over("tp"))] * 2 + [program(torch.neg)] * 2)


@pytest.mark.parametrize(
    ("other", "x"),
    [
        (reduce_over("tp", "max"), torch.zeros(4)),
        (reduce_over("tp"), torch.zeros(5)),
        (reduce_over("tp"), torch.zeros(4, dtype=torch.float64)),
    ],
    ids=["reduction", "shape", "dtype"],
)
def test_ranks_of_a_group_that_disagree_diverge(other, x):
    programs = [program(reduce_over("tp"))] * 3 + [program(other)]
    with pytest.raises(DivergenceError, match="differs between ranks of a group"):
        run(programs, [[torch.zeros(4)]] * 3 + [[x]])


def test_all_to_all_splits_that_do_not_meet_diverge():
    even = program((functional.all_to_all_single.default, [2, 2], [2, 2], "mesh:tp"))
    odd = program((functional.all_to_all_single.default, [2, 2], [3, 1], "mesh:tp"))
    with pytest.raises(DivergenceError, match=r"sends \[3, 1\] of 4 elements from rank 1"):
        run([even, even, even, odd])


def test_a_wrong_group_size_diverges():
    with pytest.raises(DivergenceError, match="has the group size 4; expected 2, the number of ranks of its group"):
        run([program((functional.all_gather_into_tensor.default, 4, "mesh:tp"))] * 4)


def test_a_broadcast_from_a_rank_that_its_group_lacks_diverges():
    with pytest.raises(DivergenceError, match="sends from rank 2 of a group of 2 ranks; expected a rank from 0 to 1"):
        run([program((functional.broadcast.default, 2, "mesh:tp"))] * 4)


def test_scatter_of_a_size_that_does_not_divide_diverges():
    scatter = program((functional.reduce_scatter_tensor.default, "sum", 2, "mesh:tp"))
    with pytest.raises(DivergenceError, match="expected a dimension 0 that the ranks divide"):
        run([scatter] * 4, [[torch.zeros(3)]] * 4)


def test_a_result_used_before_its_wait_is_an_error():
    with pytest.raises(DivergenceError, match="is used by 'neg' before its wait"):
        run([program(reduce_over("tp"), torch.neg, wait=False)] * 4)
    with pytest.raises(DivergenceError, match="is used by 'output' before its wait"):
        run([program(reduce_over("tp"), wait=False)] * 4)


def test_the_mean_of_integers_is_rejected():
    with pytest.raises(DivergenceError, match=r"cannot reduce torch\.int64 by avg"):
        run([program(reduce_over("tp", "avg"))] * 4, [[torch.ones(2, dtype=torch.int64)]] * 4)


def test_groups_with_other_names_than_mesh_axes_are_rejected():
    with pytest.raises(DivergenceError, match="lower the module without a device mesh"):
        run([program((functional.all_reduce.default, "sum", "0"))] * 4)
    with pytest.raises(DivergenceError, match="axis 'pp', which is not in mesh"):
        run([program(reduce_over("pp"))] * 4)


def test_an_op_that_fails_says_where():
    def fail(x):
        raise ValueError("no such thing\nmore")

    with pytest.raises(SpmdirError, match=r"'fail' \(.*\) fails on rank 0: no such thing$"):
        run([program(fail)] * 4)


def test_random_ops_draw_the_same_on_every_rank_and_leave_the_global_state_alone():
    state = torch.random.get_rng_state()
    twice = program(torch.ops.aten.rand_like.default, reduce_over("tp", "max"), torch.ops.aten.rand_like.default)
    outputs = run([twice] * 4)
    assert all(torch.equal(outputs[0], other) for other in outputs)
    assert torch.equal(state, torch.random.get_rng_state())
    alone = program(torch.ops.aten.rand_like.default, torch.ops.aten.rand_like.default)
    assert torch.equal(run_alone(alone, [torch.zeros(4)])[0], outputs[0])
