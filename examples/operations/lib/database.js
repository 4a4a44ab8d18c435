import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { DatabaseSync } from "@photostructure/sqlite";

const FILE =
  process.env.OPERATIONS_DB ?? fileURLToPath(new URL("../data/operations.db", import.meta.url));
// Below the shortest timeout of the tools, so that the error is told and not cut off.
const BUSY_MS = 4000;

let database;

// Opened by the first call: listing tools loads the handlers, and must not make a file.
function connect() {
  if (database) return database;
  const opened = new DatabaseSync(FILE, { timeout: BUSY_MS });
  try {
    const schema = readFileSync(new URL("schema.sql", import.meta.url), "utf8");
    transaction(opened, "BEGIN IMMEDIATE", () => opened.exec(schema));
  } catch (error) {
    opened.close();
    throw error;
  }
  return (database = opened);
}

function transaction(db, begin, work) {
  db.exec(begin);
  try {
    const result = work(db);
    db.exec("COMMIT");
    return result;
  } catch (error) {
    if (db.isTransaction) db.exec("ROLLBACK");
    throw error;
  }
}

/** Several reads of one state. */
export const read = (work) => transaction(connect(), "BEGIN", work);

/** Writes, all or none. The lock is taken first: one that is taken later cannot wait. */
export const write = (work) => transaction(connect(), "BEGIN IMMEDIATE", work);

/** Writes that happen once per key: the same key again gives what the first call gave. */
export const once = ({ toolId, idempotencyKey } = {}, work) =>
  write((db) => {
    if (!idempotencyKey) return work(db);
    const known = db
      .prepare("SELECT result FROM outcomes WHERE tool_id = ? AND key = ?")
      .get(toolId, idempotencyKey);
    if (known) return JSON.parse(known.result);
    const result = work(db);
    db.prepare("INSERT INTO outcomes VALUES (?, ?, ?)").run(
      toolId,
      idempotencyKey,
      JSON.stringify(result),
    );
    return result;
  });

export const newId = (kind) => `${kind}_${randomUUID()}`;

export const now = () => new Date().toISOString();

export const json = (value) => (value === undefined ? null : JSON.stringify(value));
