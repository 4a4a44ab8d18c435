"""The official Python client with its own OAuth code: authorizes, lists and calls."""
import asyncio
import json
import sys
from urllib.parse import parse_qs, urlparse

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata


class Memory(TokenStorage):
    tokens = client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client_info):
        self.client = client_info


async def main():
    url, mode = sys.argv[1:3]
    came_back = {}

    async def visit(address):
        async with httpx2.AsyncClient(follow_redirects=False) as browser:
            answer = await browser.get(address)
        came_back.update(parse_qs(urlparse(answer.headers["location"]).query))

    async def code():
        return AuthorizationCodeResult(
            code=came_back["code"][0], state=came_back["state"][0], iss=came_back["iss"][0]
        )

    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="test", redirect_uris=["http://localhost:1/callback"]
        ),
        storage=Memory(),
        redirect_handler=visit,
        callback_handler=code,
    )
    async def work():
        async with httpx2.AsyncClient(auth=provider, timeout=30) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, mode=mode) as client:
                tools = [tool.name for tool in (await client.list_tools()).tools]
                result = await client.call_tool("calculator", {"expression": "6*7"})
                return {"tools": tools, "text": result.content[0].text}

    try:
        done = await work()
    except Exception:
        # The client handles one challenge for each request. After a token without the scope it asks
        # for one with the scope at the next request.
        done = await work()
    print(json.dumps(done))


asyncio.run(main())
