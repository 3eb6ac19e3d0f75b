"""Programs of causal language models with caches: capture, decision, and simulated ranks."""

from __future__ import annotations

import pytest
import torch

import spmdir
from spmdir.dialects import ir
from spmdir.dialects.values import signature_kind, signature_name
from spmdir.serving.capture_model import capture
from spmdir.serving.programs import limits_of, program_of
from tests.serving.models import greedy_tokens, make_model

PROMPTS = {2: [3, 1, 4, 1, 5], 0: [9, 2]}
"""Row of the caches → prompt."""


ONE_LAYER = {
    "Qwen3": {"num_hidden_layers": 1},
    "GPT2": {"n_layer": 1},
    "Mixtral": {"num_hidden_layers": 1},
    "DeepseekV3": {"num_hidden_layers": 1, "first_k_dense_replace": 0},
}
"""Model → sizes with one layer."""


def greedy_inputs(count: int) -> list[torch.Tensor]:
    """Return the inputs of a program that let `count` sequences take the most probable token."""
    zeros = torch.zeros(count, dtype=torch.int64)
    return [torch.zeros(count), zeros, torch.ones(count), zeros]


@pytest.mark.parametrize(
    ("name", "sharding"),
    [
        *(("Llama", sharding) for sharding in ("tp: S(2)", "tp: S(1)", "tp: S(0)", "tp: R", "tp(1)2: S(2)")),
        ("DeepseekV3", "tp: S(2)"),
    ],
)
def test_decode_on_ranks_gives_the_tokens_of_one_device(name, sharding):
    heads, ranks = (2, 4) if sharding.startswith("tp(1)2") else (4, 2)
    sizes = {"num_key_value_heads": heads} if name == "Llama" else ONE_LAYER[name]
    model, mesh = make_model(name, **sizes), spmdir.Mesh({"tp": ranks})
    plan = {"caches.*": sharding}
    module = capture(model, mesh, plan, batch=4, max_length=16, prompt_lengths=[8])
    spmdir.run_passes(module, "inline,propagate{topology=flat}")
    limits = limits_of(module)
    assert (limits.batch, limits.max_length, limits.prompt_lengths, limits.vocabulary) == (4, 16, [8], 61)
    assert limits.max_top_k == 61
    decode = ir.functions(module)[0]
    caches = {
        signature_name(decode, "arg_attrs", value.index): torch.zeros(value.type.get_shape(), dtype=torch.float64)
        for value in decode.args
        if signature_kind(decode, "arg_attrs", value.index) == "cache"
    }

    def run(name: str, *inputs: list) -> list[int]:
        """Run a program on simulated ranks with the present caches, and return its tokens."""
        state = {**model.state_dict(), **caches}
        tokens, *written = spmdir.simulate(
            program_of(module, name), [*map(torch.tensor, inputs), *greedy_inputs(len(inputs[0]))], state
        )
        caches.update(zip(caches, written, strict=True))
        return tokens.tolist()

    tokens = {}
    for row, prompt in PROMPTS.items():
        padding = 8 - len(prompt)
        positions = [-1] * padding + list(range(len(prompt)))
        tokens[row] = run("prefill_8", [[0] * padding + prompt], [positions], [row])
    for step in range(3):
        ids, positions = [[0]] * 4, [[-1]] * 4
        for row, prompt in PROMPTS.items():
            ids[row], positions[row] = [tokens[row][-1]], [len(prompt) + step]
        for row, token in enumerate(run("decode", ids, positions)):
            if row in tokens:
                tokens[row].append(token)
    assert list(tokens.values()) == greedy_tokens(model, list(PROMPTS.values()), 4)


@pytest.mark.parametrize("name", ONE_LAYER)
def test_a_prefill_on_one_device_gives_the_next_token(name):
    model = make_model(name, **ONE_LAYER[name])
    module = capture(model, spmdir.Mesh({"tp": 1}), batch=1, max_length=4, prompt_lengths=[4])
    program = program_of(module, "prefill_4")
    function = ir.main_function(program)
    state = {**model.state_dict()}
    for value in function.args:
        if signature_kind(function, "arg_attrs", value.index) == "cache":
            shape = value.type.get_shape()
            state[signature_name(function, "arg_attrs", value.index)] = torch.zeros(shape, dtype=torch.float64)
    inputs = [torch.tensor(values) for values in ([[0, 3, 1, 5]], [[-1, 0, 1, 2]], [0])] + greedy_inputs(1)
    tokens, *_ = spmdir.simulate(program, inputs, state)
    assert [tokens.tolist()] == greedy_tokens(model, [[3, 1, 5]], 1)


@pytest.mark.parametrize(
    ("pages", "page_rows", "message"),
    [
        (1, 4, "pages is 1; expected at least 2, the pages of a sequence of 8 tokens"),
        (4, 3, "page_rows is 3; expected a divisor of max_length, 8"),
    ],
)
def test_pages_hold_the_longest_sequence(pages: int, page_rows: int, message: str) -> None:
    sizes = {"batch": 2, "max_length": 8, "pages": pages, "page_rows": page_rows}
    with pytest.raises(spmdir.SpmdirError, match=message):
        capture(make_model("Llama", num_hidden_layers=1), spmdir.Mesh({"tp": 1}), **sizes)
