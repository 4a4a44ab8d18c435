"""A small MCP server over standard input and output whose tools are what a file says.

usage: fickle_server.py TOOLS_FILE tell|silent [GATE]

TOOLS_FILE holds the list of tools as JSON, or an object with the lists `tools`, `prompts` and
`resources`. With `tell` the server says `list_changed` when the
file changes, and `updated` of each resource that is subscribed. Calls answer the name of the tool. A call with the
argument `add` adds a tool and a prompt of that name to what this process lists, or changes their descriptions. Where GATE is there, a named pipe, the server does
not answer before somebody has written to it.
"""

import json
import os
import sys
import threading
import time

path, mode = sys.argv[1], sys.argv[2]
if len(sys.argv) > 3 and os.path.exists(sys.argv[3]):
    with open(sys.argv[3]) as gate:
        gate.read()
speaking = threading.Lock()
subscribed = set()
added = {}


def say(message):
    with speaking:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def stamp():
    try:
        data = os.stat(path)
        return (data.st_mtime_ns, data.st_size, data.st_ino)
    except OSError:
        return None


def watch():
    known = stamp()
    while True:
        time.sleep(0.02)
        now = stamp()
        if now != known:
            known = now
            say({"method": "notifications/tools/list_changed"})
            for uri in sorted(subscribed):
                say({"method": "notifications/resources/updated", "params": {"uri": uri}})


def listing(what):
    with open(path) as file:
        said = json.load(file)
    if not isinstance(said, dict):
        said = {"tools": said}
    here = list(added.values()) if what in ("tools", "prompts") else []
    names = [one["name"] for one in here]
    there = [one for one in said.get(what, []) if isinstance(one, (list, str)) or one.get("name") not in names]
    return there + here


def offers():
    changes = {"listChanged": mode == "tell"}
    with open(path) as file:
        more = ["prompts", "resources"] if isinstance(json.load(file), dict) else []
    offered = {name: dict(changes) for name in ["tools", *more]}
    if more:
        offered["resources"]["subscribe"] = True
        offered["completions"] = {}
    return offered


for line in sys.stdin:
    request = json.loads(line)
    method, id = request.get("method"), request.get("id")
    if id is None:
        continue
    if method == "initialize":
        say({"id": id, "result": {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": offers(),
            "serverInfo": {"name": "fickle", "version": "1"},
        }})
        if mode == "tell":
            threading.Thread(target=watch, daemon=True).start()
    elif method == "tools/list":
        tools = listing("tools")
        # A list of lists is one of pages; a page that is a text is the cursor to go back to.
        if not (tools and isinstance(tools[0], list)):
            tools = [tools]
        at = int(request.get("params", {}).get("cursor") or 0)
        result = {"tools": tools[at]}
        if at + 1 < len(tools):
            after = tools[at + 1]
            result["nextCursor"] = after if isinstance(after, str) else str(at + 1)
        say({"id": id, "result": result})
    elif method in ("prompts/list", "resources/list"):
        what = method.split("/")[0]
        say({"id": id, "result": {what: listing(what)}})
    elif method == "resources/templates/list":
        say({"id": id, "result": {"resourceTemplates": []}})
    elif method == "tools/call":
        text = "called " + request["params"]["name"]
        name = request["params"].get("arguments", {}).get("add")
        if name:
            added[name] = {"name": name, "description": "Added.", "inputSchema": {"type": "object"}}
            say({"method": "notifications/tools/list_changed"})
        say({"id": id, "result": {"content": [{"type": "text", "text": text}]}})
    elif method == "prompts/get":
        message = {"role": "user", "content": {"type": "text", "text": request["params"]["name"]}}
        say({"id": id, "result": {"messages": [message]}})
    elif method == "resources/read":
        uri = request["params"]["uri"]
        say({"id": id, "result": {"contents": [{"uri": uri, "text": "text of " + uri}]}})
    elif method == "completion/complete":
        say({"id": id, "result": {"completion": {"values": []}}})
    elif method == "resources/subscribe":
        subscribed.add(request["params"]["uri"])
        say({"id": id, "result": {}})
    elif method == "resources/unsubscribe":
        subscribed.discard(request["params"]["uri"])
        say({"id": id, "result": {}})
    elif method == "ping":
        say({"id": id, "result": {}})
    else:
        say({"id": id, "error": {"code": -32601, "message": "method not found"}})
