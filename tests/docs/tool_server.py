"""Runs tools of spmdir and scripts, each call in a process of its own that has imported torch and read rules already.

A call gets the arguments, the environment, the folder and the streams of the process that asks, and the status goes
back to it.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import socket
import sys
import traceback

import tests.warm  # noqa: F401


def serve(address: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                run(connection)
            connection.close()


def run(connection: socket.socket) -> None:
    """Run the call that comes in on `connection`, and end the process."""
    status = 2
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        head, streams, *_ = socket.recv_fds(connection, 4, 3)
        with connection.makefile("rb") as stream:
            request = json.loads(stream.read(int.from_bytes(head, "big")))
        for descriptor, given in enumerate(streams):
            os.dup2(given, descriptor)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.executable = shutil.which("python") or sys.executable  # what a tool starts is forked from here too
        tool = importlib.import_module(request["module"])
        status = tool.main(request["arguments"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([status & 255]))
        os._exit(status & 255)


if __name__ == "__main__":
    serve(sys.argv[1])
