import { json, newId, now } from "./database.js";

/** Times are kept in UTC, so that they sort as texts. */
export function instant(text) {
  const time = new Date(text);
  const utc = Number.isNaN(time.getTime()) ? "" : time.toISOString();
  if (!/^\d{4}-/.test(utc)) throw new Error(`The time ${text} cannot be kept.`);
  return utc;
}

const RECORDS = {
  lead: "SELECT 1 FROM leads WHERE lead_id = ?",
  contact: "SELECT 1 FROM contacts WHERE contact_id = ?",
};

export function insertTask(db, task) {
  const { related } = task;
  if (RECORDS[related?.kind] && !db.prepare(RECORDS[related.kind]).get(related.id)) {
    throw new Error(`There is no ${related.kind} ${related.id}.`);
  }
  const taskId = newId("task");
  const createdAt = now();
  db.prepare(
    `INSERT INTO tasks (task_id, title, details, due, priority, assignee_id, tags, checklist,
       related, status, created_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', ?)`,
  ).run(
    taskId,
    task.title,
    task.details ?? null,
    task.due === undefined ? null : instant(task.due),
    task.priority ?? "normal",
    task.assignee_id ?? null,
    json(task.tags ?? []),
    json((task.checklist ?? []).map(({ text, done = false }) => ({ text, done }))),
    json(related),
    createdAt,
  );
  return { task_id: taskId, status: "open", created_at: createdAt };
}
