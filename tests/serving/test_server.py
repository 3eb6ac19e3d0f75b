"""The example server under torchrun: tokens of one device for ragged requests, invalid requests, and a killed rank."""

from __future__ import annotations

import runpy
import signal

import pytest

from spmdir.serving.sampling_settings import Sampling
from tests.serving.load import ROOT, kind_of, random_requests, running_server, send_all
from tests.serving.models import drawn_tokens

INVALID = {
    b"[1": "Expecting",
    b'{"prompt": [1]}': "expected a JSON object with prompt and max_new_tokens",
    b'{"prompt": [], "max_new_tokens": 1}': "a prompt has no tokens",
    b'{"prompt": [128], "max_new_tokens": 1}': "expected integers from 0 to 127",
    b'{"prompt": [1], "max_new_tokens": 99}': "expected at most 48, the max_length",
    b'{"prompt": [1], "max_new_tokens": 1, "top_p": 2}': "top_p is 2",
}
"""Body → a part of the error."""


@pytest.mark.gloo
def test_a_server_answers_all_requests_also_when_a_rank_is_killed() -> None:
    model = runpy.run_path(str(ROOT / "examples" / "server.py"))["tiny_llama"]()
    requests = random_requests(12, seed=1, max_length=48)
    with running_server(batch=3, max_length=48, prompt_lengths=8, timeout=120) as server:
        for body, message in INVALID.items():
            status, (answer,) = server.send(body)
            assert status == 400 and message in answer["error"]
        for request, answer in zip(requests, send_all(server, requests), strict=True):
            settings = {name: request[name] for name in ("temperature", "top_k", "seed") if name in request}
            tokens = drawn_tokens(model, request["prompt"], request["max_new_tokens"], Sampling(**settings))
            assert answer == (200, [*tokens, {"done": True}])
        long = [{"prompt": [1], "max_new_tokens": 48}] * 10
        answers = send_all(server, [{"prompt": [2], "max_new_tokens": 1}, *long], signal.SIGKILL, after=1)
        kinds = [kind_of(*pair) for pair in zip([{"max_new_tokens": 1}, *long], answers, strict=True)]
        assert "error" in kinds
        assert server.process.wait() == 1
