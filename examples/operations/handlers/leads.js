import { decode, encode } from "../lib/cursor.js";
import { json, newId, now, once, read, write } from "../lib/database.js";
import { insertTask } from "../lib/tasks.js";

const DAY_MS = 86_400_000;
const NOTES_MAX = 200;
const STAGES_MAX = 100;

function leadOf(db, leadId) {
  const lead = db.prepare("SELECT * FROM leads WHERE lead_id = ?").get(leadId);
  if (!lead) throw new Error(`There is no lead ${leadId}.`);
  return lead;
}

function openLeadOf(db, leadId) {
  const lead = leadOf(db, leadId);
  if (lead.contact_id) {
    throw new Error(`The lead ${leadId} was converted to the contact ${lead.contact_id}.`);
  }
  return lead;
}

const shown = ({ lead_id, name, phone, email, stage, owner_id, value_cents, created_at }) => ({
  lead_id,
  name,
  phone,
  email,
  stage,
  owner_id,
  value_cents,
  created_at,
});

function enterStage(db, leadId, stage, time) {
  db.prepare("INSERT INTO lead_stages (lead_id, stage, entered_at) VALUES (?, ?, ?)").run(
    leadId,
    stage,
    time,
  );
}

function insertNote(db, { lead_id, contact_id }, text, pinned, time) {
  const noteId = newId("note");
  db.prepare(
    `INSERT INTO lead_notes (note_id, lead_id, contact_id, text, pinned, created_at)
     VALUES (?, ?, ?, ?, ?, ?)`,
  ).run(noteId, lead_id, contact_id, text, Number(pinned), time);
  db.prepare("UPDATE leads SET touched_at = ? WHERE lead_id = ?").run(time, lead_id);
  return noteId;
}

// The phone number is the key, whoever calls and however often: the table knows it only once.
export const create = ({ phone, name, email, source, interest, budget, consent, tags = [] }) =>
  write((db) => {
    const time = now();
    const { changes } = db
      .prepare(
        `INSERT INTO leads (lead_id, phone, name, email, source, interest, budget, consent, tags,
           stage, value_cents, created_at, touched_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'new', ?, ?, ?)
         ON CONFLICT (phone) DO NOTHING`,
      )
      .run(
        newId("lead"),
        phone,
        name,
        email ?? null,
        source,
        interest ?? null,
        json(budget),
        json(consent),
        json(tags),
        budget?.max_cents ?? budget?.min_cents ?? null,
        time,
        time,
      );
    const lead = db.prepare("SELECT * FROM leads WHERE phone = ?").get(phone);
    if (changes) enterStage(db, lead.lead_id, lead.stage, time);
    const { lead_id, stage, created_at } = lead;
    return { lead_id, phone, stage, created: changes > 0, created_at };
  });

export const get = ({ lead_id }) =>
  read((db) => ({
    lead: shown(leadOf(db, lead_id)),
    stage_history: db
      .prepare(
        `SELECT stage, entered_at FROM lead_stages WHERE lead_id = ? ORDER BY seq DESC LIMIT ?`,
      )
      .all(lead_id, STAGES_MAX)
      .reverse(),
    notes: db
      .prepare(
        `SELECT note_id, text, created_at FROM lead_notes WHERE lead_id = ?
         ORDER BY pinned DESC, seq DESC LIMIT ?`,
      )
      .all(lead_id, NOTES_MAX),
  }));

export const list = ({ unassigned = false, limit = 25, cursor, ...only }) =>
  read((db) => {
    const matching = `FROM leads
      WHERE (:stages IS NULL OR stage IN (SELECT value FROM json_each(:stages)))
        AND (:owner IS NULL OR owner_id = :owner)
        AND (:unassigned = 0 OR owner_id IS NULL)
        AND (:from IS NULL OR created_at >= :from)
        AND (:idle IS NULL OR touched_at <= :idle)`;
    const filter = {
      stages: json(only.stages),
      owner: only.owner_id ?? null,
      unassigned: Number(unassigned),
      from: only.created_from ?? null,
      idle: only.idle_days ? new Date(Date.now() - only.idle_days * DAY_MS).toISOString() : null,
    };
    const { total } = db.prepare(`SELECT count(*) AS total ${matching}`).get(filter);
    const [before] = cursor ? decode(cursor, ["number"]) : [Number.MAX_SAFE_INTEGER];
    const rows = db
      .prepare(`SELECT * ${matching} AND seq < :before ORDER BY seq DESC LIMIT :rows`)
      .all({ ...filter, before, rows: limit + 1 });
    const page = rows.slice(0, limit);
    return {
      leads: page.map(shown),
      next_cursor: rows.length > limit ? encode([page.at(-1).seq]) : null,
      total,
    };
  });

export const update_stage = ({ lead_id, stage, lost_reason, expected_close, note }, context) =>
  once(context, (db) => {
    const lead = openLeadOf(db, lead_id);
    const time = now();
    db.prepare(
      `UPDATE leads SET stage = ?, lost_reason = ?, expected_close = coalesce(?, expected_close),
         touched_at = ?
       WHERE lead_id = ?`,
    ).run(
      stage,
      stage === "lost" ? (lost_reason ?? null) : null,
      expected_close ?? null,
      time,
      lead_id,
    );
    if (stage !== lead.stage) enterStage(db, lead_id, stage, time);
    if (note) insertNote(db, lead, note, false, time);
    return { lead_id, previous_stage: lead.stage, stage, updated_at: time };
  });

export const add_note = ({ lead_id, text, pinned = false }, context) =>
  once(context, (db) => {
    const time = now();
    const noteId = insertNote(db, leadOf(db, lead_id), text, pinned, time);
    return { note_id: noteId, lead_id, created_at: time };
  });

export const assign = ({ lead_id, owner_id, reason, notify = true }, context) =>
  once(context, (db) => {
    const lead = openLeadOf(db, lead_id);
    const time = now();
    db.prepare("UPDATE leads SET owner_id = ?, touched_at = ? WHERE lead_id = ?").run(
      owner_id,
      time,
      lead_id,
    );
    if (reason) insertNote(db, lead, `Assigned to ${owner_id}: ${reason}`, false, time);
    const told = notify && owner_id !== lead.owner_id;
    const task = told
      ? insertTask(db, {
          title: `Take over the lead ${lead.name}`,
          assignee_id: owner_id,
          related: { kind: "lead", id: lead_id },
        })
      : null;
    return {
      lead_id,
      owner_id,
      previous_owner_id: lead.owner_id,
      task_id: task?.task_id ?? null,
    };
  });

export const convert = (
  { lead_id, existing_contact_id, kind = "person", won_value_cents },
  context,
) =>
  once(context, (db) => {
    const lead = openLeadOf(db, lead_id);
    if (lead.stage === "lost") throw new Error(`The lead ${lead_id} is lost.`);
    const time = now();
    const contactId = existing_contact_id ?? newId("contact");
    if (existing_contact_id) {
      const known = db.prepare("SELECT 1 FROM contacts WHERE contact_id = ?").get(contactId);
      if (!known) throw new Error(`There is no contact ${contactId}.`);
    } else {
      db.prepare(
        `INSERT INTO contacts (contact_id, kind, name, phone, email, created_at)
         VALUES (?, ?, ?, ?, ?, ?)`,
      ).run(contactId, kind, lead.name, lead.phone, lead.email, time);
    }
    db.prepare(
      `UPDATE leads SET stage = 'won', contact_id = ?, value_cents = coalesce(?, value_cents),
         touched_at = ?
       WHERE lead_id = ?`,
    ).run(contactId, won_value_cents ?? null, time, lead_id);
    db.prepare("UPDATE lead_notes SET contact_id = ? WHERE lead_id = ?").run(contactId, lead_id);
    if (lead.stage !== "won") enterStage(db, lead_id, "won", time);
    return {
      lead_id,
      contact_id: contactId,
      contact_created: !existing_contact_id,
      converted_at: time,
    };
  });
