"""Serve a causal language model over HTTP on all ranks, with streamed tokens.

    torchrun --nproc-per-node 2 examples/server.py --port 8000
    curl -N localhost:8000/generate -d '{"prompt": [5, 17, 3], "max_new_tokens": 6}'

Without `--model`, it serves a tiny Llama with random weights. The body of a request has `prompt`, a list of tokens, and
`max_new_tokens`; also `stop`, `temperature`, `top_k`, `top_p` and `seed`. The answer has one JSON value a line: the
tokens as they are generated, then `{"done": true}` or `{"error": …}`. An invalid request is answered with 400, and a
request that cannot wait with 503. `GET /health` answers with 200 while the ranks run.

On SIGTERM and SIGINT, running requests still get their tokens, and waiting ones end with an error. If a rank ends or
hangs, all requests end with an error within the timeout, and the server ends with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import spmdir
import spmdir.serving
from spmdir.serving import Request, RequestQueue, Sampling

SAMPLING = ("temperature", "top_k", "top_p", "seed")
FIELDS = {"prompt", "max_new_tokens", "stop", *SAMPLING}


def tiny_llama() -> torch.nn.Module:
    """A Llama of two layers with random weights, equal in all processes."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 8, "num_key_value_heads": 4}
    torch.manual_seed(0)
    config = LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=128, max_position_embeddings=256)
    return LlamaForCausalLM(config).double().eval()


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="Serve a causal language model over HTTP on all ranks.")
    parser.add_argument("--model", help="name or folder of a model of transformers (default: a tiny Llama)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 for any free port (default)")
    parser.add_argument("--batch", type=int, default=8, help="sequences that run at one time")
    parser.add_argument("--max-length", type=int, default=128, help="largest number of tokens of a sequence")
    parser.add_argument("--prompt-lengths", type=int, nargs="+", default=[16])
    parser.add_argument("--max-waiting", type=int, default=1000, help="requests that wait for a row of the caches")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds after which a rank that hangs is an error")
    return parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection; `queue` and `token_timeout` are set on a subclass."""

    queue: RequestQueue
    token_timeout: float
    timeout = 30  # seconds to read or write a part of a connection

    def do_GET(self) -> None:
        """Answer whether the ranks run."""
        if self.path != "/health":
            self.answer(404, {"error": f"no page {self.path}; expected /health, or POST /generate"})
        elif self.queue.is_closed:
            self.answer(503, {"error": "the server accepts no more requests"})
        else:
            self.answer(200, {"waiting": self.queue.waiting})

    def do_POST(self) -> None:
        """Run a request, and stream its tokens."""
        if self.path != "/generate":
            self.answer(404, {"error": f"no page {self.path}; expected POST /generate"})
            return
        try:
            request = self.read_request()
        except (spmdir.SpmdirError, ValueError) as error:
            self.answer(400, {"error": error.message if isinstance(error, spmdir.SpmdirError) else str(error)})
            return
        try:
            self.queue.add(request)
        except spmdir.SpmdirError as error:
            self.answer(503, {"error": error.message})
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        try:
            self.stream(request)
        except OSError:  # the client has closed the connection
            request.cancel()

    def read_request(self) -> Request:
        """The request in the body; raises SpmdirError or ValueError if it is invalid."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if not isinstance(body, dict) or not {"prompt", "max_new_tokens"} <= set(body) <= FIELDS:
            raise ValueError(f"expected a JSON object with prompt and max_new_tokens, of {', '.join(sorted(FIELDS))}")
        sampling = Sampling(**{name: body[name] for name in SAMPLING if name in body})
        return self.queue.limits.request(body["prompt"], body["max_new_tokens"], body.get("stop", ()), sampling)

    def stream(self, request: Request) -> None:
        """Write each token as a line, and the end or the error of the request as the last line."""
        last: Any = {"done": True}
        try:
            for token in request.stream(self.token_timeout):
                self.write_line(token)
        except spmdir.SpmdirError as error:
            last = {"error": error.message}
        self.write_line(last)

    def answer(self, status: int, value: Any) -> None:
        """Write an answer of one JSON value."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.write_line(value)

    def write_line(self, value: Any) -> None:
        """Write a JSON value and a line break."""
        self.wfile.write(json.dumps(value).encode() + b"\n")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no requests."""


class Server(ThreadingHTTPServer):
    """A server that ends when all connections are answered."""

    daemon_threads = False
    request_queue_size = 1000  # connections that wait for a thread


def main() -> int:
    """Serve until a signal or an error; 0 if all requests were answered."""
    options = parse_arguments()
    on_cuda = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    dist.init_process_group("nccl" if on_cuda else "gloo", timeout=timedelta(seconds=options.timeout))
    rank = dist.get_rank()
    sys.stdout.write(f"rank {rank}: process {os.getpid()}\n")
    sys.stdout.flush()
    model = AutoModelForCausalLM.from_pretrained(options.model).eval() if options.model else tiny_llama()
    served = spmdir.serving.serve(
        model,
        spmdir.Mesh({"tp": dist.get_world_size()}),
        batch=options.batch,
        max_length=options.max_length,
        prompt_lengths=options.prompt_lengths,
    )
    queue = served.queue(options.max_waiting) if rank == 0 else None
    for number in (signal.SIGTERM, signal.SIGINT):  # the first rank ends the others
        signal.signal(number, lambda *_: queue is None or queue.close("the server is ending"))
    if queue is None:
        served.run()
        return 0
    handler = type("Handler", (Handler,), {"queue": queue, "token_timeout": 10 * options.timeout})
    with Server((options.host, options.port), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        sys.stdout.write(f"listening on http://{options.host}:{server.server_address[1]}\n")
        sys.stdout.flush()
        try:
            served.run(queue)
        finally:
            server.shutdown()
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except spmdir.SpmdirError as error:
        print(error, file=sys.stderr, flush=True)
        code = 1
    sys.stdout.flush()
    os._exit(code)  # groups of ranks that hang would keep the process alive
