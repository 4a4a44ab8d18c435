"""An MCP server over standard input and output that misbehaves as it is told to.

usage: scripted_server.py LOG modern|legacy|fragile|silent|slow [PAGES]

Every message that it reads is appended to LOG. A fragile server ends at a question of the modern
era, a silent one does not answer it; both are legacy servers. A slow one is a modern server that
reads nothing before it was asked twice. PAGES is `loop` or `empty`: how its cursors go.
"""

import json
import os
import sys
import threading

log = open(sys.argv[1], "a", buffering=1)
era = sys.argv[2]
pages = sys.argv[3] if len(sys.argv) > 3 else ""
held, listening = [], []
slow = era == "slow"
era = "modern" if slow else era


def raw(data):
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def say(message):
    raw(json.dumps({"jsonrpc": "2.0", **message}).encode())


def text(id, words):
    say({"id": id, "result": {"content": [{"type": "text", "text": words}]}})


def progress(token, done):
    params = {"progressToken": token, "progress": done}
    say({"method": "notifications/progress", "params": params})


def call(id, params, line):
    name, args = params["name"], params.get("arguments", {})
    token = params["_meta"]["progressToken"]
    if name == "progress":
        for done in range(args["count"]):
            progress(token, done)
        text(id, "done")
    elif name == "raw":
        raw(args["line"].replace("@ID@", str(id)).encode("latin-1"))
    elif name == "hold":
        held.append(id)
        say({"method": "notifications/message", "params": {"level": "error", "data": "held"}})
    elif name == "release":
        while held:
            text(held.pop(), "released")
        text(id, "done")
    elif name == "twice":
        text(id, "first")
        text(id, "second")
        text(99999, "nobody asked")
    elif name == "late":
        text(id, "done")
        progress(token, 1)
    elif name == "die":
        os._exit(3)
    elif name == "mute":
        os.close(1)
        threading.Event().wait()
    elif name == "big":
        raw(b'{"result":{"content":[{"type":"text","text":"' + b"x" * args["bytes"]
            + b'"}]},"id":' + str(id).encode() + b"}")
    elif name == "refuse":
        say({"id": id, "error": args})
    elif name == "flood":
        for _ in range(args["count"]):
            say({"method": "notifications/tools/list_changed"})
        text(id, "done")
    elif name == "touch":
        meta = {"io.modelcontextprotocol/subscriptionId": listening[-1]} if listening else {}
        say({"method": "notifications/resources/updated",
             "params": {"uri": args["uri"], "_meta": meta}})
        text(id, "done")
    elif name == "unknown-block":
        say({"id": id, "result": {"content": [{"type": "hologram", "depth": 3}]}})
    elif name == "chatter":
        raw(b"reticulating splines {\"id\": 1}")
        text(id, "done")
    else:
        text(id, line)


CAPABILITIES = {
    "tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True},
    "completions": {}, "logging": {},
}


def answer(method, params):
    if method == "tools/list":
        cursor = params.get("cursor")
        tool = {"name": "a", "inputSchema": {"$schema": "http://json-schema.org/draft-07/schema#",
                "definitions": {"n": {"type": "integer"}}, "type": "object",
                "properties": {"n": {"$ref": "#/definitions/n"}}},
                "icons": [{"src": "data:,"}], "_meta": {"k": 1}, "execution": {"taskSupport": "no"}}
        if pages == "loop":
            return {"tools": [tool], "nextCursor": "again"}
        if pages == "empty" and cursor is None:
            return {"tools": [tool], "nextCursor": ""}
        return {"tools": [dict(tool, name="b" if cursor == "" else "a")]}
    if method == "prompts/list":
        return {"prompts": [{"name": "p", "_meta": {"k": 1}}]}
    if method == "resources/list":
        return {"resources": [{"uri": "r:1", "name": "one"}]}
    if method == "resources/templates/list":
        return {"nothing": []}
    return {"echo": params}


def asked(method):
    """How often this server was asked, before its restart too."""
    with open(sys.argv[1]) as before:
        return sum(json.loads(line).get("method") == method for line in before)


def lines():
    kept = [sys.stdin.readline() for _ in range(2 if slow else 0)]
    yield from kept
    yield from sys.stdin


for line in lines():
    log.write(line)
    request = json.loads(line)
    method, id, params = request.get("method"), request.get("id"), request.get("params", {})
    if id is None:
        continue
    if method == "server/discover" and era == "modern":
        say({"id": id, "result": {"resultType": "complete", "supportedVersions": ["2026-07-28"],
             "capabilities": CAPABILITIES, "ttlMs": 0, "cacheScope": "private"}})
    elif method == "server/discover" and era == "fragile":
        os._exit(1)
    elif method == "server/discover" and era == "silent":
        pass
    elif method == "initialize" and era != "modern":
        say({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": CAPABILITIES,
             "serverInfo": {"name": "scripted", "version": "1"}}})
    elif method in ("server/discover", "initialize"):
        say({"id": id, "error": {"code": -32601, "message": "method not found"}})
    elif method == "subscriptions/listen":
        listening.append(id)
        say({"method": "notifications/subscriptions/acknowledged", "params": {
            "_meta": {"io.modelcontextprotocol/subscriptionId": id},
            "notifications": params["notifications"]}})
    elif method == "resources/subscribe" and pages == "refuses" and asked(method) == 2:
        say({"id": id, "error": {"code": -32603, "message": "not yet"}})
    elif method == "tools/call":
        call(id, params, line)
    else:
        say({"id": id, "result": answer(method, params)})
