// The tools, resources and prompts that the conformance suite expects of a server.
//
// A tool or prompt is run with its arguments and a context:
//   modern        whether the request is of the stateless era
//   capabilities  what the client has declared
//   responses     `inputResponses` of a further round, or undefined
//   state         `requestState` of a further round, or undefined
//   log(data), progress(progress, total)
//   ask(method, params)   a request to a legacy client, as a promise of its result
//   changed(kind)         "tools" or "prompts": tells all who listen
//   updated(uri)          tells all who have subscribed to a resource

import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";

export class RpcError extends Error {
  constructor(code, message, data) {
    super(message);
    Object.assign(this, { code, data });
  }
}

// A red pixel, and a WAV file without samples.
const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

const text = (value) => ({ type: "text", text: value });
const image = { type: "image", data: PNG, mimeType: "image/png" };
const embedded = (uri, mimeType, value) => ({ type: "resource", resource: { uri, mimeType, text: value } });
const said = (...content) => ({ content });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const object = (properties = {}, required = Object.keys(properties)) =>
  required.length > 0 ? { type: "object", properties, required } : { type: "object", properties };
const string = { type: "string" };

// Questions of the stateless era: a result that asks for input, and what the next round brings.

const KEY = randomBytes(32);
const seal = (subject, value) => createHmac("sha256", KEY).update(`${subject}\0${value}`).digest("base64url");
const signed = (subject, value) => `${value}.${seal(subject, value)}`;

function unsigned(subject, state) {
  const at = typeof state === "string" ? state.lastIndexOf(".") : -1;
  const [value, given] = at < 0 ? ["", ""] : [state.slice(0, at), state.slice(at + 1)];
  const [own, other] = [seal(subject, value), given].map((part) => Buffer.from(part));
  if (own.length !== other.length || !timingSafeEqual(own, other)) {
    throw new RpcError(-32602, "requestState is not of this server", {});
  }
  return value;
}

const form = (message, properties) => ({
  method: "elicitation/create",
  params: { message, requestedSchema: object(properties) },
});
const sample = (prompt, maxTokens) => ({
  method: "sampling/createMessage",
  params: { messages: [{ role: "user", content: text(prompt) }], maxTokens },
});
const roots = { method: "roots/list", params: {} };
const name = form("What is your name?", { name: string });
const confirm = form("Please confirm", { ok: { type: "boolean" } });

const input = (inputRequests, requestState) => ({
  resultType: "input_required",
  inputRequests,
  ...(requestState === undefined ? {} : { requestState }),
});

function isAnswer(request, answer) {
  if (typeof answer !== "object" || answer === null) {
    throw new RpcError(-32602, "an input response is an object", {});
  }
  return {
    "elicitation/create": ["accept", "decline", "cancel"].includes(answer.action),
    "sampling/createMessage": answer.content !== undefined,
    "roots/list": Array.isArray(answer.roots),
  }[request.method];
}

// The answers to `requests`, or undefined where some are missing. Others are ignored.
function answers(context, requests) {
  const { responses } = context;
  if (responses === undefined) return undefined;
  if (typeof responses !== "object" || responses === null) {
    throw new RpcError(-32602, "`inputResponses` is an object", {});
  }
  const all = Object.keys(requests).every(
    (key) => key in responses && isAnswer(requests[key], responses[key]),
  );
  return all ? responses : undefined;
}

const NEEDS = { "elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots" };

function needCapabilities(requests, capabilities) {
  for (const { method } of Object.values(requests)) {
    const need = NEEDS[method];
    if (!capabilities[need]) {
      throw new RpcError(-32021, "Missing required client capability", { requiredCapabilities: { [need]: {} } });
    }
  }
}

// A tool or prompt that asks once. In the stateless era the question is its result, with a state
// that has to come back where it has a subject; in the era with sessions it is a request.
const asking = (questions, finish, subject) => async (args, context) => {
  const requests = typeof questions === "function" ? questions(args) : questions;
  needCapabilities(requests, context.capabilities);
  if (!context.modern) {
    const got = {};
    for (const [key, { method, params }] of Object.entries(requests)) got[key] = await context.ask(method, params);
    return finish(got);
  }
  const got = answers(context, requests);
  if (got === undefined) return input(requests, subject && signed(subject, "asked"));
  if (subject) unsigned(subject, context.state);
  return finish(got);
};

function multiRound(_, context) {
  const subject = "multi_round";
  const first = { step1: form("Step 1: What is your name?", { name: string }) };
  const second = { step2: form("Step 2: What is your favorite color?", { color: string }) };
  const round = context.state === undefined ? "none" : unsigned(subject, context.state);
  if (round === "second") {
    if (answers(context, second)) return said(text("All steps are complete."));
    return input(second, signed(subject, "second"));
  }
  if (round === "first" && answers(context, first)) return input(second, signed(subject, "second"));
  return input(first, signed(subject, "first"));
}

function withCapabilities(_, { capabilities }) {
  const requests = {};
  if (capabilities.sampling) requests.greeting = sample("Generate a greeting", 50);
  if (capabilities.elicitation) requests.user_name = name;
  if (capabilities.roots) requests.client_roots = roots;
  return input(requests);
}

// The questions of the era with sessions; a gateway may have put them into the other one.

const plain = (...values) => ({ type: "string", enum: values });
const titled = (...names) => names.map((title, at) => ({ const: `value${at + 1}`, title }));
const outcome = ({ answer }) =>
  said(text(`Elicitation completed: action=${answer.action}, content=${JSON.stringify(answer.content)}`));

const defaults = form("Please review", {
  name: { type: "string", default: "John Doe" },
  age: { type: "integer", default: 30 },
  score: { type: "number", default: 95.5 },
  status: { ...plain("active", "inactive", "pending"), default: "active" },
  verified: { type: "boolean", default: true },
});
const enums = form("Please choose", {
  untitledSingle: plain("option1", "option2", "option3"),
  titledSingle: { type: "string", oneOf: titled("First Option", "Second Option", "Third Option") },
  legacyEnum: { ...plain("opt1", "opt2", "opt3"), enumNames: ["Option One", "Option Two", "Option Three"] },
  untitledMulti: { type: "array", items: plain("option1", "option2", "option3") },
  titledMulti: { type: "array", items: { anyOf: titled("First Choice", "Second Choice", "Third Choice") } },
});
const account = ({ message }) => ({ answer: form(message, { username: string, email: string }) });
const modelAnswer = ({ answer }) => said(text(`LLM response: ${answer.content?.text}`));

// Notifications, and lists that change.

async function progress(_, context) {
  for (const done of [0, 50, 100]) {
    context.progress(done, 100);
    if (done < 100) await pause(50);
  }
  return said(text("Progress is complete."));
}

async function logging(_, context) {
  for (const line of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
    context.log(line);
    if (!line.endsWith("completed")) await pause(50);
  }
  return said(text("Logging is complete."));
}

const shown = { tools: true, prompts: true };
const trigger = (kind) => (_, context) => {
  shown[kind] = !shown[kind];
  context.changed(kind);
  return said(text(`The list of ${kind} has changed.`));
};

function updateResource(_, context) {
  context.updated("test://watched-resource");
  return said(text("The resource has changed."));
}

const RICH_SCHEMA = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  $defs: {
    address: { $anchor: "addressDef", type: "object", properties: { street: string, city: string } },
  },
  properties: {
    name: string,
    address: { $ref: "#/$defs/address" },
    contactMethod: { type: "string", enum: ["phone", "email"] },
    phone: string,
    email: string,
  },
  allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
  if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
  then: { required: ["phone"] },
  else: { required: ["email"] },
  additionalProperties: false,
};

const tool = (toolName, description, run, inputSchema = object()) => ({ name: toolName, description, inputSchema, run });
const ok = () => said(text("ok"));

const TOOLS = [
  tool("test_simple_text", "Returns text.", () => said(text("This is a simple text response for testing."))),
  tool("test_image_content", "Returns an image.", () => said(image)),
  tool("test_audio_content", "Returns audio.", () => said({ type: "audio", data: WAV, mimeType: "audio/wav" })),
  tool("test_embedded_resource", "Returns an embedded resource.", () =>
    said(embedded("test://embedded-resource", "text/plain", "This is an embedded resource content."))),
  tool("test_multiple_content_types", "Returns content of several types.", () =>
    said(text("Multiple content types test:"), image,
      embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'))),
  tool("test_error_handling", "Always fails.", () => ({
    ...said(text("This tool intentionally returns an error for testing")), isError: true,
  })),
  tool("test_tool_with_progress", "Reports progress.", progress),
  tool("test_tool_with_logging", "Sends log messages.", logging),
  tool("test_logging_tool", "Sends log messages.", logging),
  tool("test_sampling", "Asks the client's model.",
    asking(({ prompt: words }) => ({ answer: sample(words, 100) }), modelAnswer), object({ prompt: string })),
  tool("test_elicitation", "Asks the user.", asking(account, outcome), object({ message: string })),
  tool("test_elicitation_sep1034_defaults", "Asks the user, with defaults.", asking({ answer: defaults }, outcome)),
  tool("test_elicitation_sep1330_enums", "Asks the user to choose.", asking({ answer: enums }, outcome)),
  tool("test_missing_capability", "Needs a client with sampling.",
    asking({ answer: sample("Say something", 100) }, modelAnswer)),
  tool("test_streaming_elicitation", "Asks the user.", asking({ user_name: name }, ok)),
  tool("test_trigger_tool_change", "Changes the list of tools.", trigger("tools")),
  tool("test_trigger_prompt_change", "Changes the list of prompts.", trigger("prompts")),
  tool("test_trigger_resource_update", "Changes the watched resource.", updateResource),
  tool("test_changing_tool", "Is listed or not.", ok),
  tool("test_header_parameter", "Has a parameter that is mirrored into a header.", ok,
    object({ region: { type: "string", "x-mcp-header": "Region" } })),
  tool("json_schema_2020_12_tool", "Tool with JSON Schema 2020-12 features", ok, RICH_SCHEMA),
  tool("test_input_required_result_elicitation", "Asks for a name.",
    asking({ user_name: name }, (got) => said(text(`Hello, ${got.user_name.content?.name}!`)))),
  tool("test_input_required_result_sampling", "Asks the client's model.",
    asking({ capital_question: sample("What is the capital of France?", 100) },
      (got) => said(text(`LLM response: ${got.capital_question.content.text}`)))),
  tool("test_input_required_result_list_roots", "Asks for the client's roots.",
    asking({ client_roots: roots }, (got) => said(text(`Roots: ${JSON.stringify(got.client_roots.roots)}`)))),
  tool("test_input_required_result_request_state", "Asks with a state.",
    asking({ confirm }, () => said(text("state-ok")), "request_state")),
  tool("test_input_required_result_multiple_inputs", "Asks several questions at once.",
    asking({ user_name: name, greeting: sample("Generate a greeting", 50), client_roots: roots }, ok, "multiple_inputs")),
  tool("test_input_required_result_multi_round", "Asks twice.", multiRound),
  tool("test_input_required_result_tampered_state", "Asks with a signed state.", asking({ confirm }, ok, "tampered_state")),
  tool("test_input_required_result_capabilities", "Asks only what the client can answer.", withCapabilities),
];

export const listedTools = () => TOOLS.filter((each) => shown.tools || each.name !== "test_changing_tool");

// Resources.

const RESOURCES = [
  { uri: "test://static-text", name: "Static text", description: "A text.", mimeType: "text/plain",
    text: "This is the content of the static text resource." },
  { uri: "test://static-binary", name: "Static binary", description: "An image.", mimeType: "image/png", blob: PNG },
  { uri: "test://watched-resource", name: "Watched resource", description: "A text to subscribe to.",
    mimeType: "text/plain", text: "Watched resource content." },
];

export const resources = () => RESOURCES.map(({ text: _, blob: __, ...about }) => about);

export const templates = () => [{
  uriTemplate: "test://template/{id}/data", name: "Template", description: "Data for an id.", mimeType: "application/json",
}];

export function readResource(uri, modern) {
  const found = RESOURCES.find((each) => each.uri === uri);
  if (found) {
    const { name: _, description: __, ...contents } = found;
    return { contents: [contents] };
  }
  const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
  if (id !== undefined) {
    const data = { id, templateTest: true, data: `Data for ID: ${id}` };
    return { contents: [{ uri, mimeType: "application/json", text: JSON.stringify(data) }] };
  }
  throw new RpcError(modern ? -32602 : -32002, "Resource not found", { uri });
}

// Prompts.

const user = (content) => ({ role: "user", content });
const prompt = (promptName, description, run, ...required) => ({
  name: promptName, description, run,
  arguments: required.map((each) => ({ name: each, description: `The argument ${each}.`, required: true })),
});

const PROMPTS = [
  prompt("test_simple_prompt", "A prompt without arguments.", () => ({
    messages: [user(text("This is a simple prompt for testing."))],
  })),
  prompt("test_prompt_with_arguments", "A prompt with arguments.", ({ arg1, arg2 }) => ({
    messages: [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  }), "arg1", "arg2"),
  prompt("test_prompt_with_embedded_resource", "A prompt with a resource.", ({ resourceUri }) => ({
    messages: [user(embedded(resourceUri, "text/plain", "Embedded resource content for testing.")),
      user(text("Please process the embedded resource above."))],
  }), "resourceUri"),
  prompt("test_prompt_with_image", "A prompt with an image.", () => ({
    messages: [user(image), user(text("Please analyze the image above."))],
  })),
  prompt("test_changing_prompt", "Is listed or not.", () => ({ messages: [user(text("ok"))] })),
  prompt("test_input_required_result_prompt", "A prompt that asks.",
    asking({ user_context: form("What context should the prompt use?", { context: string }) },
      (got) => ({ messages: [user(text(`Context: ${got.user_context.content?.context}`))] }))),
];

export const listedPrompts = () => PROMPTS.filter((each) => shown.prompts || each.name !== "test_changing_prompt");

export function complete({ ref, argument }) {
  const known = ref?.type === "ref/prompt"
    ? PROMPTS.some((each) => each.name === ref.name)
    : templates().some((each) => each.uriTemplate === ref?.uri);
  if (!known || typeof argument?.value !== "string") throw new RpcError(-32602, "nothing to complete", {});
  const values = ["paris", "park", "party", "test"].filter((value) => value.startsWith(argument.value));
  return { completion: { values, total: values.length, hasMore: false } };
}
