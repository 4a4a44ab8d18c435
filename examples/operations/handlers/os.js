import { decode, encode } from "../lib/cursor.js";
import { json, newId, now, once, read } from "../lib/database.js";
import { insertTask, instant } from "../lib/tasks.js";

const EXCERPT_MAX = 500;

function taskOf(db, taskId) {
  const task = db.prepare("SELECT * FROM tasks WHERE task_id = ?").get(taskId);
  if (!task) throw new Error(`There is no task ${taskId}.`);
  return task;
}

const shown = ({ task_id, title, status, priority, due, assignee_id, tags }) => ({
  task_id,
  title,
  status,
  priority,
  due,
  assignee_id,
  tags: JSON.parse(tags),
});

export const create_task = (args, context) => once(context, (db) => insertTask(db, args));

export const update_task = ({ task_id, ...wanted }, context) =>
  once(context, (db) => {
    const task = taskOf(db, task_id);
    if (wanted.due !== undefined) wanted.due = instant(wanted.due);
    if (wanted.tags) wanted.tags = json(wanted.tags);
    const changed = Object.keys(wanted).filter((field) => wanted[field] !== task[field]);
    const next = { ...task, ...wanted };
    db.prepare(
      `UPDATE tasks SET title = ?, details = ?, due = ?, priority = ?, assignee_id = ?, tags = ?,
         status = ?, completed_at = ?
       WHERE task_id = ?`,
    ).run(
      next.title,
      next.details,
      next.due,
      next.priority,
      next.assignee_id,
      next.tags,
      next.status,
      next.status === "done" ? next.completed_at : null,
      task_id,
    );
    return { task: shown(next), changed_fields: changed };
  });

export const complete_task = ({ task_id, result, minutes_spent }, context) =>
  once(context, (db) => {
    const task = taskOf(db, task_id);
    if (task.status === "cancelled") throw new Error(`The task ${task_id} is cancelled.`);
    const completedAt = task.completed_at ?? now();
    if (task.status !== "done") {
      db.prepare(
        `UPDATE tasks SET status = 'done', completed_at = ?, result = ?, minutes_spent = ?
         WHERE task_id = ?`,
      ).run(completedAt, result ?? null, minutes_spent ?? null, task_id);
    }
    return { task_id, status: "done", completed_at: completedAt, next_task_id: null };
  });

export const delete_task = ({ task_id, reason }, context) =>
  once(context, (db) => {
    const { changes } = db.prepare("DELETE FROM tasks WHERE task_id = ?").run(task_id);
    if (changes) {
      db.prepare("INSERT INTO deleted_tasks VALUES (?, ?, ?)").run(task_id, reason, now());
    }
    return { task_id, deleted: changes > 0 };
  });

export const list_tasks = ({ limit = 50, cursor, ...only }) =>
  read((db) => {
    const matching = `FROM tasks
      WHERE (:status IS NULL OR status IN (SELECT value FROM json_each(:status)))
        AND (:assignee IS NULL OR assignee_id = :assignee)
        AND (:due IS NULL OR due < :due)
        AND (:priority IS NULL OR priority = :priority)
        AND NOT EXISTS (SELECT 1 FROM json_each(:tags) AS wanted
          WHERE wanted.value NOT IN (SELECT value FROM json_each(tasks.tags)))`;
    const filter = {
      status: json(only.status),
      assignee: only.assignee_id ?? null,
      due: only.due_before === undefined ? null : instant(only.due_before),
      priority: only.priority ?? null,
      tags: json(only.tags ?? []),
    };
    const { total } = db.prepare(`SELECT count(*) AS total ${matching}`).get(filter);
    const [rank, due, seq] = cursor ? decode(cursor, ["number", "string", "number"]) : [-1, "", 0];
    const rows = db
      .prepare(
        `SELECT * ${matching} AND (rank, due_rank, seq) > (:rank, :after, :seq)
         ORDER BY rank, due_rank, seq LIMIT :rows`,
      )
      .all({ ...filter, rank, after: due, seq, rows: limit + 1 });
    const page = rows.slice(0, limit);
    const last = page.at(-1);
    return {
      tasks: page.map(shown),
      next_cursor: rows.length > limit ? encode([last.rank, last.due_rank, last.seq]) : null,
      total,
    };
  });

export const create_note = ({ title, body, notebook = "general", tags = [] }, context) =>
  once(context, (db) => {
    const noteId = newId("note");
    const createdAt = now();
    const { lastInsertRowid } = db
      .prepare(
        `INSERT INTO notes (note_id, title, body, notebook, tags, created_at)
         VALUES (?, ?, ?, ?, ?, ?)`,
      )
      .run(noteId, title, body, notebook, json(tags), createdAt);
    db.prepare("INSERT INTO notes_text (rowid, title, body) VALUES (?, ?, ?)").run(
      lastInsertRowid,
      title,
      body,
    );
    return { note_id: noteId, created_at: createdAt };
  });

export const search_notes = ({ query, notebook, tags = [], limit = 10 }) =>
  read((db) => {
    // Quoted, since an index query has operators of its own.
    const words = (query.match(/[\p{L}\p{N}]+/gu) ?? []).map((word) => `"${word}"*`);
    if (words.length === 0) return { notes: [], count: 0 };
    const rows = db
      .prepare(
        `SELECT note_id, notes.title, created_at,
           snippet(notes_text, -1, '', '', '…', 32) AS excerpt
         FROM notes_text JOIN notes ON notes.seq = notes_text.rowid
         WHERE notes_text MATCH :words
           AND (:notebook IS NULL OR notebook = :notebook)
           AND NOT EXISTS (SELECT 1 FROM json_each(:tags) AS wanted
             WHERE wanted.value NOT IN (SELECT value FROM json_each(notes.tags)))
         ORDER BY bm25(notes_text), notes.seq DESC LIMIT :rows`,
      )
      .all({ words: words.join(" "), notebook: notebook ?? null, tags: json(tags), rows: limit });
    const notes = rows.map(({ note_id, title, excerpt, created_at }) => ({
      note_id,
      title,
      excerpt: [...excerpt].slice(0, EXCERPT_MAX).join(""),
      updated_at: created_at,
    }));
    return { notes, count: notes.length };
  });
