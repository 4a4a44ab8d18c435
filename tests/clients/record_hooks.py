"""Records the messages that a client writes to the standard input of a before-tool hook.

usage: record_hooks.py claude|codex|gemini --program PATH [--out FILE] [--only TEXT] [--log FOLDER] [--no-namespaces]

PATH is the client's program, such as `node_modules/.bin/claude` of an npm installation. The client runs without a
terminal, once for each entry of its table below, each time in a new home folder. Its model is a server on loopback
that asks for the calls of the entry. The hook denies every call except those of `Client.permitted`.

FILE gets one message a line, sorted by tool; without `--out` they go to standard output. Standard error lists the
entries without a message, which make the exit code 1 and leave FILE as it is, and the declared tools that no entry
calls. `--only` runs the entries whose tool contains TEXT. `--log` keeps the requests of the client and its output.

The script runs in Linux namespaces of its own, which `unshare` makes: they have no network but loopback, and all
their processes end with the script. With `--no-namespaces`, the client can reach the network, and a process that it
moves to another process group can remain.
"""

import argparse
import dataclasses
import fcntl
import http.server
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

RUN_SECONDS_MAX = 60
REQUEST_SECONDS_MAX = 20
HOOK_SECONDS_MAX = 30
REQUEST_BYTES_MAX = 64 << 20
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
UNSHARE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]

# The folders that messages name instead of the temporary ones. The tables use them too.
HOME, PROJECT = "/home/dev", "/home/dev/project"
# A conversation with this text is the main one. Another one that declares tools is that of a subagent.
PROMPT = "Do the next step of the recording."

HOOK = """\
import json, sys
code = 2
try:
    message = json.loads(sys.stdin.read())
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps(message, ensure_ascii=False, separators=(",", ":")) + "\\n")
    code = 0 if message["tool_name"] in sys.argv[2:] else 2
finally:
    if code:
        print("denied by the recording", file=sys.stderr)
    sys.exit(code)
"""

MCP_SERVER = """\
import json, sys
tool = {"name": "echo_thing", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    answer = {"error": {"code": -32601, "message": "method not found"}}
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}},
                             "serverInfo": {"name": "tiny", "version": "1"}}}
    elif request["method"] == "tools/list":
        answer = {"result": {"tools": [tool]}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""

FILES = {
    "project/a.txt": "one\ntwo\nthree\n",
    "project/n.ipynb": json.dumps({
        "cells": [{"cell_type": "code", "id": "c1", "metadata": {}, "outputs": [], "source": ["x=0"]}],
        "metadata": {}, "nbformat": 4, "nbformat_minor": 5}),
    "servers/hook.py": HOOK,
    "servers/mcp.py": MCP_SERVER,
}


@dataclasses.dataclass
class Entry:
    """One run of a client: the recorded tool, as messages name it, and the calls of the model, as (name, arguments).

    The calls in `subagent` are those of the subagent that a call of the main conversation starts.
    """
    tool: str
    calls: list
    subagent: list | tuple = ()
    model: str = ""


def one(tool, **arguments):
    return Entry(tool, [(tool, arguments)])


TOUCH = f"touch {PROJECT}/marker"
READ = ("Read", {"file_path": f"{PROJECT}/a.txt"})
TASK = {"subject": "a task", "description": "do a", "activeForm": "doing a"}
SUBTASK = {"description": "sub", "prompt": "say hi", "subagent_type": "general-purpose"}

CLAUDE = [
    one("Agent", **SUBTASK),
    one("Bash", command=TOUCH, description="bg", run_in_background=True),
    one("Bash", command=TOUCH, timeout=5000, description="touch marker"),
    Entry("Bash", [("Agent", SUBTASK)], subagent=[("Bash", {"command": TOUCH, "description": "x"})]),
    one("CronCreate", cron="0 0 1 1 *", prompt="hi", recurring=False),
    Entry("Edit", [READ, ("Edit", {"file_path": f"{PROJECT}/a.txt", "old_string": "two", "new_string": "TWO"})]),
    one("EnterWorktree"),
    one("Glob", pattern="**/*.txt", path=f"{PROJECT}/"),
    one("Grep", pattern="two", path=f"{PROJECT}/", output_mode="content"),
    Entry("NotebookEdit", [
        ("Read", {"file_path": f"{PROJECT}/n.ipynb"}),
        ("NotebookEdit", {"notebook_path": f"{PROJECT}/n.ipynb", "cell_id": "c1", "new_source": "x=1",
                          "cell_type": "code", "edit_mode": "replace"})]),
    one("Read", file_path=f"{PROJECT}/a.txt", offset=1, limit=2),
    one("ScheduleWakeup", delaySeconds=3600, reason="x", prompt="hi"),
    one("SendMessage", to="x", summary="hi there", message="hello"),
    one("Skill", skill="init"),
    one("TaskCreate", **TASK),
    Entry("TaskGet", [("TaskCreate", TASK), ("TaskGet", {"taskId": "1"})]),
    one("TaskList"),
    Entry("TaskUpdate", [("TaskCreate", TASK), ("TaskUpdate", {"taskId": "1", "status": "in_progress"})]),
    one("TodoWrite", todos=[{"content": "a", "status": "pending", "activeForm": "doing a"}]),
    one("WebFetch", url="http://127.0.0.1:9/x", prompt="summarise"),
    one("WebSearch", query="cats"),
    one("Write", file_path=f"{PROJECT}/new.txt", content="hello\nworld\n"),
    one("mcp__tiny__echo_thing", path="/etc/x", count=3),
]

# The first model calls tools directly; the second calls most of them from a script, the tool `exec`.
DIRECT, SCRIPTED = "gpt-5.5", "gpt-6.2-sol"
PATCH = ("*** Begin Patch\n*** Add File: new.txt\n+hello\n+world\n*** Update File: a.txt\n@@\n one\n-two\n+TWO\n"
         " three\n*** End Patch\n")
QUESTION = {"id": "a", "header": "h", "question": "q?",
            "options": [{"label": "a", "description": "b"}, {"label": "c", "description": "d"}]}


def direct(tool, name, arguments, model=DIRECT, subagent=()):
    return Entry(tool, [(name, arguments)], subagent, model)


def scripted(tool, name, arguments):
    return direct(tool, "exec", f"text(await tools.{name}({json.dumps(arguments)}));\n", SCRIPTED)


CODEX = [
    direct("Bash", "exec_command", {"cmd": TOUCH}),
    direct("Bash", "exec_command", {"cmd": "touch marker-here; pwd", "workdir": HOME}),
    direct("Bash", "exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}EOF\n"}),
    direct("Bash", "exec_command", {"cmd": "cat", "tty": True}),
    direct("Bash", "exec_command", {"cmd": "true", "shell": "/bin/sh", "login": False}),
    direct("Bash", "multi_agent_v1.spawn_agent", {"message": "do x", "agent_type": "default"},
           subagent=[("exec_command", {"cmd": TOUCH})]),
    direct("apply_patch", "apply_patch", PATCH),
    direct("create_goal", "create_goal", {"objective": "x"}),
    direct("list_mcp_resources", "list_mcp_resources", {}),
    direct("mcp__tiny__echo_thing", "mcp__tiny.echo_thing", {"path": "/etc/x", "count": 3}),
    direct("request_user_input", "request_user_input", {"questions": [QUESTION]}),
    direct("spawn_agent", "multi_agent_v1.spawn_agent", {"message": "do x", "agent_type": "default"}),
    direct("view_image", "view_image", {"path": f"{PROJECT}/a.png"}),
    scripted("Bash", "exec_command", {"cmd": TOUCH}),
    scripted("Bash", "exec_command", {"cmd": TOUCH, "workdir": HOME}),
    scripted("apply_patch", "apply_patch", "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"),
    scripted("mcp__tiny__echo_thing", "mcp__tiny__echo_thing", {"path": "/etc/x", "count": 3}),
    direct("clocksleep", "clock.sleep", {"duration_ms": 10}, SCRIPTED),
    direct("collaborationlist_agents", "collaboration.list_agents", {}, SCRIPTED),
    direct("collaborationspawn_agent", "collaboration.spawn_agent", {"message": "do x", "task_name": "t1"}, SCRIPTED),
    direct("send_message_to_user_async", "send_message_to_user_async", {"message": "x"}, SCRIPTED),
]

GEMINI = [
    one("enter_plan_mode", reason="x"),
    one("glob", pattern="**/*.txt", dir_path=PROJECT),
    one("google_web_search", query="cats"),
    one("grep_search", pattern="two", dir_path=PROJECT),
    one("invoke_agent", agent_name="generalist", prompt="do x"),
    one("list_background_processes"),
    one("list_directory", dir_path=PROJECT),
    one("mcp_tiny_echo_thing", path="/etc/x", count=3),
    one("read_file", file_path=f"{PROJECT}/a.txt", start_line=1, end_line=2),
    one("replace", file_path=f"{PROJECT}/a.txt", instruction="change two", old_string="two", new_string="TWO"),
    one("run_shell_command", command=TOUCH, description="touch", dir_path=PROJECT),
    one("run_shell_command", command="sleep 2; echo bg", description="bg", is_background=True,
        wait_for_previous=True),
    Entry("run_shell_command", [("invoke_agent", {"agent_name": "generalist", "prompt": "do x"})],
          subagent=[("run_shell_command", {"command": TOUCH, "description": "t"}),
                    ("complete_task", {"result": "done", "response": "done"})]),
    one("search_file_content", pattern="two", dir_path=PROJECT),
    one("update_topic", title="t", summary="s", strategic_intent="i"),
    one("web_fetch", prompt="summarise http://127.0.0.1:9/x"),
    one("write_file", file_path=f"{PROJECT}/new.txt", content="hello\nworld\n"),
]


def events(*messages):
    """Returns server-sent events."""
    return "".join(f"event: {message['type']}\ndata: {json.dumps(message)}\n\n" for message in messages)


class Client:
    """How a client is run, and how it speaks with its model."""
    event = "PreToolUse"
    hook_timeout = HOOK_SECONDS_MAX
    # The tools that may run, since later calls need them.
    permitted = ()

    def hooks(self, home):
        """Returns the settings of the hook."""
        words = ["python3", f"{home}/servers/hook.py", f"{home}/messages.jsonl", *self.permitted]
        hook = {"type": "command", "command": shlex.join(words), "timeout": self.hook_timeout}
        return {"hooks": {self.event: [{"matcher": "*", "hooks": [hook]}]}}

    def mcp_servers(self, home):
        return {"mcpServers": {"tiny": {"command": "python3", "args": [f"{home}/servers/mcp.py"]}}}


class Claude(Client):
    """Claude Code, by the Messages API."""
    path, entries = "/messages", CLAUDE
    permitted = ("Read", "TaskCreate", "Agent")

    def settings(self, home, url):
        return {".claude/settings.json": json.dumps(self.hooks(home)),
                "servers/mcp.json": json.dumps(self.mcp_servers(home))}

    def command(self, home, entry):
        # It has these two tools only where they are named, and then no others.
        tools = ["--tools", entry.tool] if entry.tool in ("Glob", "Grep") else []
        return ["--mcp-config", f"{home}/servers/mcp.json", *tools, "-p", PROMPT]

    def variables(self, url, entry):
        # It has `TodoWrite` only without the other tools for tasks.
        tasks = {"CLAUDE_CODE_ENABLE_TASKS": "0"} if entry.tool == "TodoWrite" else {}
        return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "ENABLE_TOOL_SEARCH": "false",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", **tasks}

    def declared(self, request):
        return [tool["name"] for tool in request.get("tools", [])]

    def results(self, request):
        contents = [message["content"] for message in request["messages"] if isinstance(message["content"], list)]
        return sum(part["type"] == "tool_result" for content in contents for part in content)

    def answer(self, request, call, id):
        if call:
            block = {"type": "tool_use", "id": f"toolu_{id}", "name": call[0], "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
        else:
            block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": "Done."}
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": f"msg_{id}", "type": "message", "role": "assistant", "model": request["model"], "content": [],
                   "stop_reason": None, "stop_sequence": None, "usage": usage}
        reason = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
        return events(
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": reason, "usage": usage},
            {"type": "message_stop"})


class Codex(Client):
    """Codex, by the Responses API."""
    path, entries = "/responses", CODEX
    permitted = ("spawn_agent",)

    def settings(self, home, url):
        config = f"""\
model_provider = "recording"
check_for_update_on_startup = false
[model_providers.recording]
name = "recording"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[mcp_servers.tiny]
command = "python3"
args = ["{home}/servers/mcp.py"]
[analytics]
enabled = false
"""
        return {".codex/config.toml": config, ".codex/hooks.json": json.dumps(self.hooks(home))}

    def command(self, home, entry):
        return ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
                "--dangerously-bypass-hook-trust", "--model", entry.model, PROMPT]

    def variables(self, url, entry):
        return {}

    def declared(self, request):
        tools = list(request.get("tools", []))
        for item in request["input"]:
            tools += item.get("tools", []) if item["type"] == "additional_tools" else []
        inner = [tool for outer in tools for tool in outer.get("tools", [outer])]
        return [tool.get("name", tool["type"]) for tool in inner]

    def results(self, request):
        return sum(item["type"] in ("function_call_output", "custom_tool_call_output") for item in request["input"])

    def answer(self, request, call, id):
        if not call:
            item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}
        elif isinstance(call[1], str):
            item = {"type": "custom_tool_call", "call_id": f"call_{id}", "name": call[0], "input": call[1]}
        else:
            namespace, _, name = call[0].rpartition(".")
            item = {"type": "function_call", "call_id": f"call_{id}", "name": name, "arguments": json.dumps(call[1])}
            item |= {"namespace": namespace} if namespace else {}
        item |= {"id": f"item_{id}", "status": "completed"}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        response = {"id": f"resp_{id}", "object": "response", "output": []}
        return events(
            {"type": "response.created", "response": response},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {**response, "output": [item], "usage": usage}})


class Gemini(Client):
    """Gemini CLI, by `generateContent`."""
    path, entries = ":streamGenerateContent", GEMINI
    event = "BeforeTool"
    hook_timeout = HOOK_SECONDS_MAX * 1000
    permitted = ("invoke_agent",)

    def settings(self, home, url):
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            **self.mcp_servers(home), **self.hooks(home)}
        return {".gemini/settings.json": json.dumps(settings)}

    def command(self, home, entry):
        return ["--skip-trust", "--approval-mode", "yolo", "--model", "gemini-2.5-flash", "--prompt", PROMPT]

    def variables(self, url, entry):
        return {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "none", "GEMINI_CLI_NO_RELAUNCH": "true"}

    def declared(self, request):
        tools = [tool.get("functionDeclarations", []) for tool in request.get("tools", [])]
        return [function["name"] for functions in tools for function in functions]

    def results(self, request):
        parts = [part for content in request.get("contents", []) for part in content.get("parts", [])]
        return sum("functionResponse" in part for part in parts)

    def answer(self, request, call, id):
        part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": "Done."}
        message = {
            "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}}
        # Its reader of events knows no line but `data`.
        return f"data: {json.dumps(message)}\n\n"


CLIENTS = {"claude": Claude(), "codex": Codex(), "gemini": Gemini()}


class ModelServer(http.server.ThreadingHTTPServer):
    """Asks for the calls of one entry. The number of results in a request tells the next call."""
    daemon_threads = True

    def __init__(self, client, entry, home):
        super().__init__(("127.0.0.1", 0), ModelRequest)
        self.client, self.entry, self.home = client, entry, home
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.declared, self.requests = set(), []
        self.changing = threading.Lock()
        self.subagent_done = threading.Event()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.subagent_done.set()
        self.shutdown()
        self.server_close()

    def next_call(self, request):
        """Returns the call to ask for; `None` ends the conversation."""
        declared = self.client.declared(request)
        if not declared:
            return None
        self.declared.update(declared)
        main = PROMPT in json.dumps(request)
        calls, done = self.entry.calls if main else self.entry.subagent, self.client.results(request)
        if done < len(calls):
            name, arguments = calls[done]
            return name, json.loads(json.dumps(arguments).replace(HOME, str(self.home)))
        if not main:
            self.subagent_done.set()
        elif self.entry.subagent:
            # The main conversation would end a subagent that still works.
            self.subagent_done.wait(REQUEST_SECONDS_MAX)
        return None

    def answer(self, body):
        request = json.loads(body)
        with self.changing:
            self.requests.append(request)
            id = f"{len(self.requests):04}"
        return self.client.answer(request, self.next_call(request), id)


class ModelRequest(http.server.BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS_MAX

    def send(self, status, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_HEAD(self):
        self.send(404, "")

    do_GET = do_HEAD

    def do_POST(self):
        length = self.headers.get("Content-Length")
        if length is None:
            return self.send(411, "")
        body = self.rfile.read(min(int(length), REQUEST_BYTES_MAX))
        if self.path.partition("?")[0].endswith(self.server.client.path):
            self.send(200, self.server.answer(body))
        else:
            self.send(404, "")

    def log_message(self, *_):
        pass


def recorded(client, program, entry, log):
    """Runs the client for one entry. Returns its message, or `None`, and the declared tools."""
    with tempfile.TemporaryDirectory(prefix="hooks-", ignore_cleanup_errors=True) as folder:
        home = Path(folder).resolve()
        with ModelServer(client, entry, home) as server:
            for name, text in (FILES | client.settings(home, server.url)).items():
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).write_text(text)
            (home / "tmp").mkdir()
            environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": f"{home}/tmp", "LANG": "C.UTF-8",
                           **client.variables(server.url, entry)}
            run([program, *client.command(home, entry)], home, environment)
            if log:
                log.with_suffix(".json").write_text(json.dumps(server.requests, indent=1))
                log.with_suffix(".txt").write_bytes((home / "output").read_bytes())
            messages = home / "messages.jsonl"
            text = messages.read_text() if messages.exists() else ""
        # Names of folders of sessions are made of paths.
        text = text.replace(str(home), HOME)
        text = text.replace(re.sub("[^a-zA-Z0-9]", "-", str(home)), HOME.replace("/", "-"))
        lines = [line for line in text.splitlines() if json.loads(line).get("tool_name") == entry.tool]
        return (lines[0] if lines else None), server.declared


def run(command, home, environment):
    with open(home / "output", "wb") as output:
        child = subprocess.Popen(command, cwd=home / "project", env=environment, stdin=subprocess.DEVNULL,
                                 stdout=output, stderr=output, start_new_session=True)
        try:
            child.wait(RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            print(f"  still running after {RUN_SECONDS_MAX} s", file=sys.stderr)
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()


def enter_namespaces():
    """Runs this script again, in namespaces; there, brings loopback up."""
    if os.environ.pop("RECORD_HOOKS_INSIDE", None) != str(os.getppid()):
        try:
            subprocess.run([*UNSHARE, "true"], timeout=10, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            sys.exit(f"cannot make namespaces (`--no-namespaces` does without them): {error}")
        os.environ["RECORD_HOOKS_INSIDE"] = "0"
        os.execvp(UNSHARE[0], [*UNSHARE, sys.executable, *sys.argv])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as loopback:
        fcntl.ioctl(loopback, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--program", required=True, type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--no-namespaces", action="store_true")
    options = parser.parse_args()
    if not options.program.is_file():
        parser.error(f"`{options.program}` is no file")
    if options.only and options.out:
        parser.error("with `--only`, `--out` would lose the other messages")
    if not options.no_namespaces:
        enter_namespaces()
    # The exits on signals also remove the home folder.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    client, program = CLIENTS[options.client], options.program.absolute()
    if options.log:
        options.log.mkdir(parents=True, exist_ok=True)
    lines, missing, declared = [], [], set()
    for number, entry in enumerate(client.entries, 1):
        if options.only not in entry.tool:
            continue
        print(f"{number}/{len(client.entries)} {entry.tool}", file=sys.stderr)
        log = options.log and options.log / f"{options.client}-{number:02}-{entry.tool}"
        line, tools = recorded(client, program, entry, log)
        declared |= tools
        if line:
            lines.append(line)
        else:
            missing.append(f"{number} {entry.tool}")
    lines.sort(key=lambda line: json.loads(line)["tool_name"])
    text = "".join(f"{line}\n" for line in lines)
    if not options.out:
        sys.stdout.write(text)
    elif missing:
        print(f"`{options.out}` stays as it is", file=sys.stderr)
    else:
        options.out.write_text(text)
    called = {name.rpartition(".")[2] for entry in client.entries for name, _ in [*entry.calls, *entry.subagent]}
    print(f"{len(lines)} messages", file=sys.stderr)
    print("without a message: " + (", ".join(missing) or "none"), file=sys.stderr)
    print("declared, not in the table: " + (", ".join(sorted(declared - called)) or "none"), file=sys.stderr)
    return 1 if missing else 0


sys.exit(main())
