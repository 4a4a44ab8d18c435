// Runs the exports of one handler file for the gateway: one JSON message per line.
// Standard output carries messages and nothing else; whatever a handler prints goes to stderr.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { createRequire } from "node:module";

import { writeSync } from "node:fs";

const write = process.stdout.write.bind(process.stdout);
const send = (message) => write(JSON.stringify(message) + "\n");
process.stdout.write = process.stderr.write.bind(process.stderr);
// Says on stderr that a call's words end here, so that they are told from the next one's.
const mark = (id) => writeSync(2, `\0${id}\0`);
for (const method of ["log", "info", "debug", "warn", "table", "dir"]) {
  console[method] = (...args) => console.error(...args);
}

const file = process.argv[2];
let handlers;
try {
  const loaded = await import(pathToFileURL(file).href);
  handlers = { ...(loaded.default && typeof loaded.default === "object" ? loaded.default : {}), ...loaded };
} catch (first) {
  try {
    handlers = createRequire(import.meta.url)(file);
  } catch {
    console.error(first);
    send({ ready: false });
    process.exit(1);
  }
}
const names = Object.keys(handlers).filter((name) => typeof handlers[name] === "function");
send({ ready: true, handlers: names });

for await (const line of createInterface({ input: process.stdin })) {
  const { id, handler, args, context } = JSON.parse(line);
  if (!names.includes(handler)) {
    mark(id);
    send({ id, missing: true });
    continue;
  }
  let result;
  try {
    result = await handlers[handler](args, context);
  } catch (error) {
    console.error(error);
    mark(id);
    send({ id, error: error instanceof Error ? error.message : String(error) });
    continue;
  }
  mark(id);
  try {
    send({ id, result: result === undefined ? null : result });
  } catch (error) {
    send({ id, unserialisable: String(error) });
  }
}
process.exit(0);
