// An MCP server for the conformance suite: streamable HTTP, both eras on one endpoint, no SDK.
//
// usage: node server.mjs [PORT [legacy]]
// Listens on PORT of the loopback address, or on a free one, and prints `listening on URL`. With `legacy` it knows
// the era with sessions alone. It runs until its standard input ends.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

import {
  RpcError, complete, listedPrompts, listedTools, readResource, resources, templates,
} from "./offers.mjs";

const MODERN = "2026-07-28";
const LEGACY = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
const INFO = { name: "toolbooth-conformance-fixture", version: "1.0.0" };
const META = "io.modelcontextprotocol/";
const BODY_BYTES_MAX = 8 * 1024 * 1024;

const CAPABILITIES = {
  completions: {},
  logging: {},
  prompts: { listChanged: true },
  resources: { subscribe: true },
  tools: { listChanged: true },
};
const CACHED = new Set([
  "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read",
]);

/** Sessions of the legacy era by their id. */
const sessions = new Map();
/** Open streams of `subscriptions/listen`. */
const listeners = new Set();

/** The answer to one POST: plain JSON, or a stream as soon as something comes before the result. */
class Reply {
  constructor(response, headers = {}) {
    Object.assign(this, { response, headers, streams: false });
  }

  json(status, message) {
    this.response.writeHead(status, { "content-type": "application/json", ...this.headers });
    this.response.end(JSON.stringify(message));
  }

  event(message) {
    if (!this.streams) {
      this.streams = true;
      this.response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache", ...this.headers });
    }
    this.response.write(`event: message\ndata: ${JSON.stringify(message)}\n\n`);
  }

  finish(status, message) {
    if (!this.streams) return this.json(status, message);
    this.event(message);
    this.response.end();
  }
}

const result = (id, value) => ({ jsonrpc: "2.0", id, result: value });
const failure = (id, { code, message, data }) => ({
  jsonrpc: "2.0", id, error: { code, message, ...(data === undefined ? {} : { data }) },
});
const notification = (method, params) => ({ jsonrpc: "2.0", method, ...(params === undefined ? {} : { params }) });
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Tells everybody who listens that a list has changed. */
function changed(kind) {
  const method = `notifications/${kind}/list_changed`;
  for (const { id, filter, reply } of listeners) {
    if (filter[`${kind}ListChanged`]) reply.event(notification(method, { _meta: { [`${META}subscriptionId`]: id } }));
  }
  for (const { stream } of sessions.values()) stream?.event(notification(method));
}

/** Tells everybody who has subscribed to a resource that it has changed. */
function updated(uri) {
  const method = "notifications/resources/updated";
  for (const { id, filter, reply } of listeners) {
    if (!filter.resourceSubscriptions?.includes(uri)) continue;
    reply.event(notification(method, { uri, _meta: { [`${META}subscriptionId`]: id } }));
  }
  for (const { stream, subscriptions } of sessions.values()) {
    if (subscriptions.has(uri)) stream?.event(notification(method, { uri }));
  }
}

function find(all, name) {
  const found = all.find((each) => each.name === name);
  if (!found) throw new RpcError(-32602, `unknown name \`${name}\``, {});
  return found;
}

const listing = (all) => all.map(({ run: _, ...about }) => about);

/** What both eras offer. */
const METHODS = {
  "completion/complete": (params) => complete(params),
  "prompts/get": (params, context) => find(listedPrompts(), params.name).run(params.arguments ?? {}, context),
  "prompts/list": () => ({ prompts: listing(listedPrompts()) }),
  "resources/list": () => ({ resources: resources() }),
  "resources/read": (params, context) => readResource(params.uri, context.modern),
  "resources/templates/list": () => ({ resourceTemplates: templates() }),
  "tools/call": (params, context) => find(listedTools(), params.name).run(params.arguments ?? {}, context),
  "tools/list": () => ({ tools: listing(listedTools()) }),
};

/** What only requests with a session may ask. */
const LEGACY_METHODS = {
  ...METHODS,
  ping: () => ({}),
  "logging/setLevel": ({ level }, { session }) => {
    if (!LEVELS.includes(level)) throw new RpcError(-32602, "unknown level", {});
    session.level = level;
    return {};
  },
  "resources/subscribe": ({ uri }, { session }) => {
    readResource(uri, false);
    session.subscriptions.add(uri);
    return {};
  },
  "resources/unsubscribe": ({ uri }, { session }) => {
    session.subscriptions.delete(uri);
    return {};
  },
};

const MODERN_METHODS = {
  ...METHODS,
  "server/discover": () => ({ supportedVersions: [MODERN], capabilities: CAPABILITIES }),
};

/** What a running tool or prompt may use, of either era. */
function context(reply, params, level, own) {
  const token = params._meta?.progressToken;
  const loud = level !== undefined && LEVELS.indexOf(level) <= LEVELS.indexOf("info");
  const notify = (method, body) => reply.event(notification(method, body));
  return {
    changed,
    updated,
    log: (data) => loud && notify("notifications/message", { level: "info", logger: "fixture", data }),
    progress: (progress, total) =>
      token !== undefined && notify("notifications/progress", { progressToken: token, progress, total }),
    ...own,
  };
}

// The stateless era.

/** Decodes the value of an `Mcp-Param-*` header; undefined where it is not well formed. */
function decoded(value) {
  const wrapped = /^=\?base64\?(.*)\?=$/.exec(value)?.[1];
  if (wrapped === undefined) return value;
  const bytes = Buffer.from(wrapped, "base64");
  return bytes.toString("base64") === wrapped ? bytes.toString("utf8") : undefined;
}

function checkHeaders(headers, method, params) {
  const mismatch = (what) => new RpcError(-32020, `Header mismatch: ${what}`);
  if (headers["mcp-method"] !== method) throw mismatch("Mcp-Method");
  const name = { "tools/call": params.name, "prompts/get": params.name, "resources/read": params.uri }[method];
  if (name === undefined) return;
  if (headers["mcp-name"] === undefined || decoded(headers["mcp-name"]) !== name) throw mismatch("Mcp-Name");
  if (method !== "tools/call") return;
  const properties = listedTools().find((tool) => tool.name === name)?.inputSchema.properties ?? {};
  for (const [property, schema] of Object.entries(properties)) {
    const header = schema["x-mcp-header"];
    const value = params.arguments?.[property];
    if (header === undefined || value === undefined || value === null) continue;
    const given = headers[`mcp-param-${header.toLowerCase()}`];
    if (given === undefined || decoded(given) !== String(value)) throw mismatch(`Mcp-Param-${header}`);
  }
}

function checkModern(headers, message) {
  const params = message.params ?? {};
  const meta = params._meta;
  const [version, capabilities] = ["protocolVersion", "clientCapabilities"].map((key) => meta?.[META + key]);
  if (typeof version !== "string" || !isObject(capabilities)) {
    throw new RpcError(-32602, "Invalid params: `_meta` lacks what every request needs", {});
  }
  if (headers["mcp-protocol-version"] !== version) throw new RpcError(-32020, "Header mismatch: MCP-Protocol-Version");
  if (version !== MODERN) {
    throw new RpcError(-32022, "Unsupported protocol version", { supported: [MODERN], requested: version });
  }
  if (message.method !== "subscriptions/listen" && !Object.hasOwn(MODERN_METHODS, message.method)) {
    throw new RpcError(-32601, "Method not found");
  }
  checkHeaders(headers, message.method, params);
  return { params, meta, capabilities };
}

const STATUS = { [-32601]: 404, [-32602]: 400, [-32020]: 400, [-32021]: 400, [-32022]: 400 };

function listen(reply, id, { notifications = {} }) {
  const filter = {};
  for (const kind of ["tools", "prompts"]) {
    if (notifications[`${kind}ListChanged`]) filter[`${kind}ListChanged`] = true;
  }
  if (notifications.resourceSubscriptions) filter.resourceSubscriptions = notifications.resourceSubscriptions;
  const listener = { id, filter, reply };
  listeners.add(listener);
  reply.response.on("close", () => listeners.delete(listener));
  const params = { _meta: { [`${META}subscriptionId`]: id }, notifications: filter };
  reply.event(notification("notifications/subscriptions/acknowledged", params));
}

async function modern(headers, message, reply) {
  const { id, method } = message;
  if (id === undefined) return void reply.response.writeHead(202).end();
  try {
    const { params, meta, capabilities } = checkModern(headers, message);
    if (method === "subscriptions/listen") return listen(reply, id, params);
    const own = { modern: true, capabilities, responses: params.inputResponses, state: params.requestState };
    const value = await MODERN_METHODS[method](params, context(reply, params, meta[`${META}logLevel`], own));
    reply.finish(200, result(id, {
      resultType: "complete",
      ...(CACHED.has(method) ? { ttlMs: 0, cacheScope: "private" } : {}),
      ...value,
      _meta: { [`${META}serverInfo`]: INFO },
    }));
  } catch (error) {
    const known = error instanceof RpcError ? error : new RpcError(-32603, String(error));
    reply.finish(STATUS[known.code] ?? 200, failure(id, known));
  }
}

// The era with sessions.

function initialize(message, response) {
  const { protocolVersion, capabilities = {} } = message.params ?? {};
  const key = randomUUID();
  const version = LEGACY.includes(protocolVersion) ? protocolVersion : LEGACY[0];
  sessions.set(key, { capabilities, asked: new Map(), subscriptions: new Set(), next: 1 });
  const value = { protocolVersion: version, capabilities: CAPABILITIES, serverInfo: INFO };
  new Reply(response, { "mcp-session-id": key }).json(200, result(message.id, value));
}

/** Sends a request to the client on the stream of the call, and waits for what it posts. */
function ask(session, reply, method, params) {
  const id = `question-${session.next++}`;
  const answer = new Promise((resolve, reject) => {
    session.asked.set(id, { resolve, reject });
    reply.response.on("close", () => session.asked.delete(id) && reject(new Error("the client has gone")));
  });
  reply.event({ jsonrpc: "2.0", id, method, params });
  return answer;
}

async function legacy(headers, message, reply) {
  const { response } = reply;
  if (message.method === "initialize") return initialize(message, response);
  const session = sessions.get(headers["mcp-session-id"]);
  if (!session) {
    const status = headers["mcp-session-id"] === undefined ? 400 : 404;
    return reply.json(status, failure(message.id ?? null, { code: -32600, message: "no such session" }));
  }
  if (message.method === undefined) {
    const waiting = session.asked.get(message.id);
    session.asked.delete(message.id);
    if (message.error) waiting?.reject(new RpcError(-32603, message.error.message));
    else waiting?.resolve(message.result ?? {});
  }
  if (message.method === undefined || message.id === undefined) return void response.writeHead(202).end();
  const { id, method, params = {} } = message;
  try {
    if (!Object.hasOwn(LEGACY_METHODS, method)) throw new RpcError(-32601, "Method not found");
    const own = {
      modern: false, session, capabilities: session.capabilities, ask: (name, body) => ask(session, reply, name, body),
    };
    const value = await LEGACY_METHODS[method](params, context(reply, params, session.level, own));
    reply.finish(200, result(id, value));
  } catch (error) {
    reply.finish(200, failure(id, error instanceof RpcError ? error : new RpcError(-32603, String(error))));
  }
}

// HTTP.

function isLocal(value) {
  const host = value?.replace(/^http:\/\//, "").replace(/:\d+$/, "");
  return ["127.0.0.1", "localhost", "[::1]"].includes(host);
}

async function body(request) {
  const parts = [];
  let size = 0;
  for await (const part of request) {
    size += part.length;
    if (size > BODY_BYTES_MAX) throw new Error("the body is too large");
    parts.push(part);
  }
  return JSON.parse(Buffer.concat(parts).toString("utf8"));
}

function otherMethod(request, response) {
  const key = request.headers["mcp-session-id"];
  const session = sessions.get(key);
  if (key === undefined || !["GET", "DELETE"].includes(request.method)) return void response.writeHead(405).end();
  if (!session) return void response.writeHead(404).end();
  if (request.method === "DELETE") {
    sessions.delete(key);
    session.stream?.response.end();
    return void response.writeHead(204).end();
  }
  session.stream = new Reply(response);
  session.stream.streams = true;
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  response.write(": open\n\n");
}

async function answer(request, response) {
  const { headers } = request;
  if (!isLocal(headers.host) || (headers.origin !== undefined && !isLocal(headers.origin))) {
    return void response.writeHead(403).end();
  }
  if (request.url !== "/mcp") return void response.writeHead(404).end();
  if (request.method !== "POST") return otherMethod(request, response);
  const reply = new Reply(response);
  let message;
  try {
    message = await body(request);
  } catch (error) {
    return reply.json(400, failure(null, { code: -32700, message: String(error) }));
  }
  if (!isObject(message)) return reply.json(400, failure(null, { code: -32600, message: "no message" }));
  const version = headers["mcp-protocol-version"];
  const old = process.argv[3] === "legacy" || version === undefined || LEGACY.includes(version);
  return await (old ? legacy : modern)(headers, message, reply);
}

const server = createServer((request, response) => {
  answer(request, response).catch((error) => {
    process.stderr.write(`${error.stack}\n`);
    response.destroy();
  });
});
server.listen(Number(process.argv[2] ?? 0), "127.0.0.1", () => process.stdout.write(`listening on http://127.0.0.1:${server.address().port}/mcp\n`));
process.stdin.resume().on("end", () => process.exit(0));
