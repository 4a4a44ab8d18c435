"""An MCP server over standard input and output whose tools do what a test tells them.

usage: stage_server.py PORT

A tool that waits connects to PORT of the loopback address, says `began KEY`, and goes on at each
line that it reads there. When its call is cancelled it says `cancelled` there and gives no answer.
"""

import json
import os
import socket
import sys
import threading

PORT = int(sys.argv[1])
speaking = threading.Lock()
running = {}


def say(message):
    with speaking:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


class Stage:
    """The connection of one call to the test."""

    def __init__(self, id, key):
        self.stream = socket.create_connection(("127.0.0.1", PORT))
        self.lines = self.stream.makefile("r")
        self.cancelled = False
        running[id] = self
        self.tell(f"began {key}")

    def tell(self, line):
        self.stream.sendall(f"{line}\n".encode())

    def cancel(self):
        self.cancelled = True
        try:
            self.tell("cancelled")
            self.stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The test has gone already.

    def wait(self):
        """Waits for the test; false where the call was cancelled."""
        try:
            line = self.lines.readline()
        except OSError:
            line = ""
        return bool(line) and not self.cancelled


def text(value):
    return {"content": [{"type": "text", "text": value}]}


def progress(token, done, total):
    if token is not None:
        params = {"progressToken": token, "progress": done, "total": total}
        say({"method": "notifications/progress", "params": params})


def wait(id, token, key):
    """Answers when the test says so."""
    return text(f"done {key}") if Stage(id, key).wait() else None


def steps(id, token, key, first, last):
    """Reports one step each time the test says so, and one more after its answer."""
    stage = Stage(id, key)
    for done in range(first, last + 1):
        if not stage.wait():
            return None
        progress(token, done, last)
    if not stage.wait():
        return None
    say({"id": id, "result": text(f"done {key}")})
    progress(token, last + 1, last)
    return None


def burst(id, token, last):
    """Reports many steps at once."""
    for done in range(1, last + 1):
        progress(token, done, last)
    return text("done")


def large(id, token, length):
    return text("x" * length)


def length(id, token, value):
    return text(str(len(value)))


def fail(id, token):
    return {**text("it did not work"), "isError": True}


def die(id, token):
    """Ends the server."""
    os._exit(3)


TOOLS = {"die": die, "wait": wait, "steps": steps, "burst": burst, "large": large, "length": length, "fail": fail}


def call(id, params):
    token = params.get("_meta", {}).get("progressToken")
    result = TOOLS[params["name"]](id, token, **params.get("arguments", {}))
    running.pop(id, None)
    if result is not None:
        say({"id": id, "result": result})


for line in sys.stdin:
    request = json.loads(line)
    method, id = request.get("method"), request.get("id")
    if method == "notifications/cancelled":
        stage = running.pop(request["params"].get("requestId"), None)
        if stage:
            stage.cancel()
    elif id is None:
        continue
    elif method == "initialize":
        say({"id": id, "result": {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "stage", "version": "1"},
        }})
    elif method == "tools/list":
        schema = {"type": "object"}
        tools = [{"name": n, "description": "Does it.", "inputSchema": schema} for n in TOOLS]
        say({"id": id, "result": {"tools": tools}})
    elif method == "tools/call":
        threading.Thread(target=call, args=(id, request["params"]), daemon=True).start()
    elif method == "ping":
        say({"id": id, "result": {}})
    else:
        say({"id": id, "error": {"code": -32601, "message": "method not found"}})
