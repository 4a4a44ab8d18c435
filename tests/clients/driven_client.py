"""A real client that does what it is told: each line on standard input is a step, each line printed
is what came of it.

A step is an object with `do`. `open` says which client: `library` is `mcp` or `fastmcp`, `mode` is
`legacy`, `auto` or a revision, and the server is a `url`, or a `command` with `env` and `cwd`.
An argument `{"repeat": N}` stands for a text of N characters; texts that are long are printed as
`{"length": N}`.
"""
import asyncio
import json
import sys

import fastmcp
import fastmcp.client.transports
import mcp
from mcp import types
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError

SECONDS_MAX = 45
LONG = 10_000


def expanded(value):
    if isinstance(value, dict):
        if set(value) == {"repeat"}:
            return "x" * value["repeat"]
        return {name: expanded(each) for name, each in value.items()}
    return value


def shortened(value):
    if isinstance(value, str) and len(value) > LONG:
        return {"length": len(value)}
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shortened(each) for each in value]
    return value


def dumped(model):
    return shortened(model.model_dump(mode="json", by_alias=True, exclude_none=True))


class Client:
    """What both libraries can do."""

    def __init__(self, step):
        self.library = step["library"]
        self.updates = asyncio.Queue()
        self.tasks = {}
        if "url" in step:
            target = step["url"]
        elif self.library == "mcp":
            command = step["command"]
            target = mcp.StdioServerParameters(command=command[0], args=command[1:], env=step["env"], cwd=step["cwd"])
        else:
            command = step["command"]
            target = fastmcp.client.transports.StdioTransport(
                command[0], command[1:], env=step["env"], cwd=step["cwd"], keep_alive=False)
        if self.library == "mcp":
            self.client = mcp.Client(
                target, mode=step["mode"], read_timeout_seconds=SECONDS_MAX, message_handler=self.hear)
        else:
            self.client = fastmcp.Client(target, mode=step["mode"], timeout=SECONDS_MAX, message_handler=self.hear)

    async def hear(self, message):
        if isinstance(message, types.ResourceUpdatedNotification):
            await self.updates.put(str(message.params.uri))

    async def hold(self):
        """Keeps the client open. It has a task of its own, which the client may cancel when it loses the server."""
        async with self.client:
            self.opened.set()
            await self.closing.wait()

    async def open(self):
        self.opened, self.closing = asyncio.Event(), asyncio.Event()
        self.holding = asyncio.create_task(self.hold())
        await asyncio.wait([self.holding, asyncio.create_task(self.opened.wait())], return_when="FIRST_COMPLETED")
        if self.holding.done():
            await self.holding
        return {"protocol": self.client.protocol_version}

    async def close(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        self.closing.set()
        await self.holding
        return {}

    async def list(self, what):
        """Names, or URIs of resources."""
        method = {"templates": "resource_templates"}.get(what, what)
        if self.library == "fastmcp":
            items = await getattr(self.client, f"list_{method}")()
        else:
            items, cursor = [], None
            while True:
                page = await getattr(self.client, f"list_{method}")(cursor=cursor, cache_mode="bypass")
                items += getattr(page, method)
                cursor = page.next_cursor
                if not cursor:
                    break
        name = {"resources": "uri", "templates": "uri_template"}.get(what, "name")
        return {"names": [str(getattr(item, name)) for item in items]}

    async def call(self, name, arguments=None, progress=False, meta=None):
        heard = []

        async def note(done, total=None, message=None):
            heard.append(done)

        if self.library == "fastmcp":
            result = await self.client.call_tool_mcp(
                name, expanded(arguments or {}), progress_handler=note if progress else None, meta=meta)
        else:
            result = await self.client.call_tool(
                name, expanded(arguments or {}), progress_callback=note if progress else None, meta=meta)
        return {"result": dumped(result), "progress": list(heard)}

    async def many(self, calls):
        return {"results": await asyncio.gather(*(self.call(**call) for call in calls))}

    async def begin(self, key, **call):
        self.tasks[key] = asyncio.create_task(self.call(**call))
        return {}

    async def finish(self, key):
        return await self.tasks.pop(key)

    async def cancel(self, key):
        task = self.tasks.pop(key)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return {}

    async def read(self, uri):
        if self.library == "fastmcp":
            return {"result": dumped(await self.client.read_resource_mcp(uri))}
        return {"result": dumped(await self.client.read_resource(uri, cache_mode="bypass"))}

    async def subscribe(self, uri):
        if self.client.protocol_version < "2026":
            await self.client.session.subscribe_resource(uri)
            return {}
        begun = asyncio.Event()

        async def follow():
            async with listen(self.client.session, resource_subscriptions=[uri]) as stream:
                begun.set()
                async for event in stream:
                    await self.updates.put(str(event.uri))

        task = self.tasks["subscription"] = asyncio.create_task(follow())
        await asyncio.wait([task, asyncio.create_task(begun.wait())], return_when="FIRST_COMPLETED")
        if task.done():
            await task
        return {}

    async def updated(self):
        return {"uri": await self.updates.get()}

    async def prompt(self, name, arguments=None):
        get = self.client.get_prompt_mcp if self.library == "fastmcp" else self.client.get_prompt
        return {"result": dumped(await get(name, arguments))}

    async def complete(self, argument, value, prompt=None, template=None):
        ref = (types.PromptReference(name=prompt, type="ref/prompt") if prompt
               else types.ResourceTemplateReference(uri=template, type="ref/resource"))
        complete = self.client.complete_mcp if self.library == "fastmcp" else self.client.complete
        return {"result": dumped(await complete(ref, {"name": argument, "value": value}))}


def told(error):
    """An error as its parts; that of a group is its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    out = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, MCPError):
        out |= {"code": error.code, "data": error.data}
    return {"error": out}


async def main():
    client = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        step = json.loads(line)
        do = step.pop("do")
        try:
            async with asyncio.timeout(SECONDS_MAX):
                if do == "open":
                    client = Client(step)
                    out = await client.open()
                else:
                    out = await getattr(client, do)(**step)
        except (Exception, asyncio.CancelledError) as error:
            out = told(error)
        print(json.dumps(out), flush=True)


asyncio.run(main())
