"""The client that the conformance suite starts: a real one, with Toolbooth between it and the suite.

usage: client.py URL

Starts Toolbooth over standard input and output, with URL as its only server, and does what the
scenario asks for. Writes `done` into its folder when everything has gone well. The environment says
the rest: `MCP_CONFORMANCE_…` is the suite's, `TOOLBOOTH_CONFORMANCE_…` that of `cargo xtask conformance`.
"""
import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters, types
from mcp.shared.exceptions import MCPError

URL = sys.argv[1]
SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
REVISION = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
FOLDER = Path(os.environ["TOOLBOOTH_CONFORMANCE_FOLDER"])
# The suite waits for 30 seconds; a client that hangs must end before that, by itself.
SECONDS_MAX = 25


async def must(client, name, arguments=None):
    """Calls a tool, which must succeed."""
    result = await client.call_tool(name, arguments or {})
    if result.is_error:
        raise AssertionError(f"{name} failed: {result.content}")
    return result


async def tools(client):
    return {tool.name: tool for tool in (await client.list_tools()).tools}


async def listing(client):
    await tools(client)


async def tools_call(client):
    result = await must(client, "add_numbers", {"a": 5, "b": 3})
    assert result.content[0].text == "The sum of 5 and 3 is 8", result


async def sse_retry(client):
    result = await must(client, "test_reconnection")
    assert result.content[0].text == "Reconnection test completed successfully", result


async def standard_headers(client):
    await must(client, "test_headers")
    await must(client, "my-hyphenated-tool")
    found = [resource.uri for resource in (await client.list_resources()).resources]
    for uri in ["file:///path/to/file%20name.txt", "https://example.com/resource?id=123"]:
        assert uri in found, found
        await client.read_resource(uri)
    assert "test_prompt" in [prompt.name for prompt in (await client.list_prompts()).prompts]
    await client.get_prompt("test_prompt")


async def custom_headers(client):
    for call in CONTEXT["toolCalls"]:
        await must(client, call["name"], call["arguments"])


async def invalid_headers(client):
    """Calls every tool that the upstream lists; the gateway is what has to refuse the invalid ones."""
    arguments = {
        "invalid_empty_header": {"value": "x"},
        "invalid_object_header": {"data": {}},
        "invalid_array_header": {"items": ["x"]},
        "invalid_null_header": {"nil": None},
        "invalid_number_header": {"score": 1.5},
        "invalid_duplicate_same_case": {"field1": "x", "field2": "x"},
        "invalid_duplicate_diff_case": {"field1": "x", "field2": "x"},
        "invalid_space_in_name": {"value": "x"},
        "invalid_colon_in_name": {"value": "x"},
        "invalid_non_ascii_name": {"value": "x"},
        "invalid_control_char_name": {"value": "x"},
    }
    await must(client, "valid_tool", {"region": "eu"})
    called = []
    for name, values in arguments.items():
        try:
            if not (await client.call_tool(name, values)).is_error:
                called.append(name)
        except MCPError:
            pass
    assert not called, called


async def defaults(client):
    await must(client, "test_client_elicitation_defaults")


async def request_state(client):
    for name in ["echo_state", "no_state", "unrelated", "no_result_type"]:
        await must(client, f"test_mrtr_{name}")


SCENARIOS = {
    "initialize": listing,
    "tools_call": tools_call,
    "sse-retry": sse_retry,
    "request-metadata": listing,
    "http-standard-headers": standard_headers,
    "http-custom-headers": custom_headers,
    "http-invalid-tool-headers": invalid_headers,
    "json-schema-ref-no-deref": listing,
    "elicitation-sep1034-client-defaults": defaults,
    "sep-2322-client-request-state": request_state,
}


async def elicit(_context, params):
    """Accepts, with the defaults that the question gives."""
    properties = params.requested_schema.get("properties", {})
    content = {name: each["default"] for name, each in properties.items() if "default" in each}
    if "confirmed" in properties:
        content["confirmed"] = True
    return types.ElicitResult(action="accept", content=content)


async def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    settings = os.environ["TOOLBOOTH_CONFORMANCE_SETTINGS"]
    (FOLDER / "toolbooth.toml").write_text(f"{settings}\n[servers.fixture]\nurl = {json.dumps(URL)}\n")
    command = os.environ["TOOLBOOTH_CONFORMANCE_GATEWAY"]
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env["XDG_STATE_HOME"] = str(FOLDER / "state")
    subprocess.run([command, "trust", "--yes", FOLDER], env=env, check=True, stdout=subprocess.DEVNULL)
    gateway = StdioServerParameters(command=command, args=["stdio"], cwd=FOLDER, env=env)
    mode = REVISION if REVISION >= "2026" else "legacy"
    async with asyncio.timeout(SECONDS_MAX):
        async with Client(gateway, mode=mode, elicitation_callback=elicit) as client:
            await SCENARIOS[SCENARIO](client)
    (FOLDER / "done").write_text("")


asyncio.run(main())
