"""A real MCP client: reads what to do as JSON on standard input, prints what came of it."""
import asyncio
import json
import sys

from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError


async def main():
    job = json.load(sys.stdin)
    target = job.get("url") or StdioServerParameters(
        command=job["command"][0], args=job["command"][1:], env=job["env"], cwd=job["cwd"]
    )
    out = {"results": []}
    async with Client(target, mode=job["mode"], read_timeout_seconds=30) as client:
        out["protocol"] = client.protocol_version
        tools, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            tools += [tool.model_dump(by_alias=True, exclude_none=True) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor:
                break
        out["tools"] = tools
        for call in job["calls"]:
            try:
                result = await client.call_tool(
                    call["name"], call.get("arguments", {}), meta=call.get("meta")
                )
                out["results"].append({"result": result.model_dump(by_alias=True, exclude_none=True)})
            except MCPError as error:
                out["results"].append(
                    {"error": {"code": error.code, "message": error.message, "data": error.data}}
                )
    json.dump(out, sys.stdout)


asyncio.run(main())
