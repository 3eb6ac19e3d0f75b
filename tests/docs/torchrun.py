"""A torchrun whose ranks are forked from a process that has imported torch already."""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Sequence

import torch.distributed as dist


def main(arguments: Sequence[str]) -> int:
    """Run a script on every rank; 1 if a rank failed, whereupon the others are ended."""
    parser = argparse.ArgumentParser("torchrun")
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args(arguments)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(options.nproc_per_node),
        "LOCAL_WORLD_SIZE": str(options.nproc_per_node),
    }
    ranks = {fork([options.script, *options.arguments], rank) for rank in range(options.nproc_per_node)}
    # The store has threads, whose locks a process that is forked beside them may find taken for ever.
    store = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    status = 0
    while ranks:
        rank, ended = os.wait()
        ranks.remove(rank)
        if ended and not status:
            status = 1
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    del store
    return status


def fork(command: Sequence[str], rank: int) -> int:
    """The process that runs a script with its arguments as `rank`."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        sys.argv = list(command)
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        runpy.run_path(command[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = int(end.code not in (None, 0))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
