// Drives the handlers without the gateway, on a database of its own: `node check.mjs`.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once as event } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const [role, at] = process.argv.slice(2);
const folder = role ? undefined : mkdtempSync(join(tmpdir(), "operations-"));
if (folder) process.env.OPERATIONS_DB = join(folder, "operations.db");

// The file is named before these are loaded: they read it then.
const os = await import("./handlers/os.js");
const leads = await import("./handlers/leads.js");
const { read, write } = await import("./lib/database.js");

const PROCESSES = 4;

const lead = (number) => ({ phone: `+4930${1_000_000 + number}`, name: "Ada", source: "website" });
const keyed = (toolId, idempotencyKey) => ({ toolId, callId: "c", idempotencyKey, attempt: 1 });
const count = (rows) => read((db) => db.prepare(`SELECT count(*) AS n FROM ${rows}`).get().n);

const start = (role, at = 0) => fork(fileURLToPath(import.meta.url), [role, String(at)]);

/** The next message of a process, which must not end before. */
const message = (child) =>
  Promise.race([
    event(child, "message").then(([words]) => words),
    event(child, "exit").then(([code]) => assert.fail(`a process ended with ${code}`)),
  ]);

/** Starts the same work in several processes at once; gives what they said. */
async function together(role) {
  const children = Array.from({ length: PROCESSES }, (_, at) => start(role, at));
  await Promise.all(children.map(message));
  const said = Promise.all(children.map(message));
  for (const child of children) child.send("go");
  return (await said).flat();
}

/** What a started process does. */
const roles = {
  same: () => Array.from({ length: 20 }, () => leads.create(lead(1)).lead_id),
  sameKey: () =>
    Array.from({ length: 20 }, () => os.create_task({ title: "T" }, keyed("os.create_task", "k2")))
      .map(({ task_id }) => task_id),
  different: (at) =>
    Array.from({ length: 200 / PROCESSES }, (_, n) =>
      leads.create(lead(1000 * (at + 1) + n)).lead_id,
    ),
  // Holds the lock in the middle of a write until it is killed.
  hang: () =>
    write((db) => {
      // With next to no cache, a part of it is in the file already.
      db.exec("PRAGMA cache_size = 1; UPDATE leads SET name = 'half'");
      process.send("locked");
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
    }),
};

const checks = {
  "every tool has its export": () => {
    const registry = new URL("../registries/operations.json", import.meta.url);
    const names = JSON.parse(readFileSync(registry, "utf8"))
      .tools.map(({ name }) => name)
      .filter((name) => /^(os|leads)\./.test(name));
    assert.equal(names.length, 14);
    for (const name of names) {
      const [domain, ...rest] = name.split(".");
      assert.equal(typeof { os, leads }[domain][rest.join("_")], "function", name);
    }
  },

  "a keyed create twice is one row": () => {
    const first = leads.create(lead(0), keyed("leads.create", "k0"));
    const second = leads.create({ ...lead(0), name: "Other" }, keyed("leads.create", "k0"));
    assert.deepEqual(second, { ...first, created: false });
    assert.equal(first.created, true);
    assert.equal(count("leads"), 1);
    assert.equal(leads.get({ lead_id: first.lead_id }).lead.name, "Ada");
  },

  "a write with the same key happens once": () => {
    const { lead_id } = leads.create(lead(0));
    const assign = () => leads.assign({ lead_id, owner_id: "ann" }, keyed("leads.assign", "k1"));
    assert.deepEqual(assign(), assign());
    assert.equal(count("tasks"), 1);
    const note = () =>
      os.create_note({ title: "N", body: "Text" }, keyed("os.create_note", "k1")).note_id;
    assert.equal(note(), note());
    assert.equal(count("notes"), 1);
  },

  "the same create in four processes is one row": async () => {
    const [leadsBefore, tasksBefore] = [count("leads"), count("tasks")];
    assert.equal(new Set(await together("same")).size, 1);
    assert.equal(new Set(await together("sameKey")).size, 1);
    assert.equal(count("leads"), leadsBefore + 1);
    assert.equal(count("tasks"), tasksBefore + 1);
  },

  "200 creates in four processes are 200 rows": async () => {
    const before = count("leads");
    assert.equal(new Set(await together("different")).size, 200);
    assert.equal(count("leads"), before + 200);
  },

  "a process that is killed in a write leaves no lock and no half": async () => {
    const child = start("hang");
    await message(child);
    child.send("go");
    await message(child);
    const ended = event(child, "exit");
    child.kill("SIGKILL");
    await ended;
    assert.ok(existsSync(`${process.env.OPERATIONS_DB}-journal`));
    const { lead_id } = leads.create(lead(2));
    assert.equal(leads.get({ lead_id }).lead.name, "Ada");
    assert.equal(count("leads WHERE name = 'half'"), 0);
  },

  "pages hold every row once": () => {
    for (const [list, rows, id] of [
      [leads.list, "leads", "lead_id"],
      [os.list_tasks, "tasks", "task_id"],
    ]) {
      const seen = [];
      for (let cursor; cursor !== null; ) {
        const page = list({ limit: 7, ...(cursor && { cursor }) });
        assert.equal(page.total, count(rows));
        seen.push(...page[rows].map((row) => row[id]));
        cursor = page.next_cursor;
      }
      assert.equal(new Set(seen).size, count(rows));
      assert.equal(seen.length, count(rows));
    }
    assert.throws(() => leads.list({ cursor: "x" }), /cursor/);
  },

  "what is not there is told": () => {
    for (const call of [
      () => leads.get({ lead_id: "no" }),
      () => leads.update_stage({ lead_id: "no", stage: "won" }),
      () => leads.add_note({ lead_id: "no", text: "T" }),
      () => leads.assign({ lead_id: "no", owner_id: "ann" }),
      () => leads.convert({ lead_id: "no" }),
      () => os.create_task({ title: "T", related: { kind: "lead", id: "no" } }),
      () => os.update_task({ task_id: "no", title: "T" }),
      () => os.complete_task({ task_id: "no" }),
    ]) {
      assert.throws(call, /^Error: There is no (lead|task) no\.$/);
    }
    const { lead_id } = leads.create(lead(2));
    const convert = () => leads.convert({ lead_id, existing_contact_id: "no" });
    assert.throws(convert, /There is no contact no\./);
    assert.equal(os.delete_task({ task_id: "no", reason: "R" }).deleted, false);
  },
};

if (role) {
  process.once("message", () => {
    process.send(roles[role](Number(at)));
    process.disconnect();
  });
  process.send("ready");
} else {
  let failed = 0;
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`ok    ${name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAIL  ${name}\n${error.stack}`);
    }
  }
  rmSync(folder, { recursive: true });
  console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}
