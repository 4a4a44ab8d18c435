# Runs the functions of one handler file for the gateway: one JSON message per line.
# Standard output carries messages and nothing else; whatever a handler prints goes to stderr.
import asyncio
import importlib.util
import inspect
import json
import os
import sys
import traceback

# Programs that a handler starts inherit neither the messages in nor those out.
out = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
messages = os.fdopen(os.dup(0), "r", encoding="utf-8")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def send(message):
    out.write(json.dumps(message, allow_nan=False) + "\n")
    out.flush()


def mark(call):
    # Says on stderr that a call's words end here, so that they are told from the next one's.
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(2, b"\0%d\0" % call)


path = sys.argv[1]
sys.path.insert(0, os.path.dirname(path))
try:
    spec = importlib.util.spec_from_file_location("toolbooth_handlers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
except BaseException:
    traceback.print_exc()
    send({"ready": False})
    sys.exit(1)
handlers = {
    name: value
    for name, value in vars(module).items()
    if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == "toolbooth_handlers"
}
send({"ready": True, "handlers": sorted(handlers)})

for line in messages:
    message = json.loads(line)
    handler = handlers.get(message["handler"])
    if handler is None:
        mark(message["id"])
        send({"id": message["id"], "missing": True})
        continue
    try:
        wants_context = len(inspect.signature(handler).parameters) > 1
        given = (message["args"], message["context"]) if wants_context else (message["args"],)
        result = handler(*given)
        if inspect.isawaitable(result):
            result = asyncio.run(result)
    except Exception as error:
        traceback.print_exc()
        mark(message["id"])
        send({"id": message["id"], "error": str(error) or type(error).__name__})
        continue
    mark(message["id"])
    try:
        send({"id": message["id"], "result": result})
    except (TypeError, ValueError) as error:
        send({"id": message["id"], "unserialisable": str(error)})
