"""Asks the server at a socket to run a tool with this process's arguments, environment, folder and streams."""

import json
import os
import socket
import sys

address, module, *arguments = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as server:
    server.connect(address)
    call = {"module": module, "arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    request = json.dumps(call).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    sys.exit(int.from_bytes(server.recv(1) or b"\xff", "big"))
