CREATE TABLE IF NOT EXISTS leads (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  lead_id TEXT NOT NULL UNIQUE,
  phone TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  email TEXT,
  source TEXT NOT NULL,
  interest TEXT,
  budget TEXT,
  consent TEXT,
  tags TEXT NOT NULL,
  stage TEXT NOT NULL,
  lost_reason TEXT,
  expected_close TEXT,
  owner_id TEXT,
  value_cents INTEGER,
  contact_id TEXT REFERENCES contacts (contact_id),
  created_at TEXT NOT NULL,
  touched_at TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS lead_stages (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  lead_id TEXT NOT NULL REFERENCES leads (lead_id),
  stage TEXT NOT NULL,
  entered_at TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS lead_notes (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  note_id TEXT NOT NULL UNIQUE,
  lead_id TEXT NOT NULL REFERENCES leads (lead_id),
  contact_id TEXT REFERENCES contacts (contact_id),
  text TEXT NOT NULL,
  pinned INTEGER NOT NULL,
  created_at TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS contacts (
  contact_id TEXT PRIMARY KEY,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  phone TEXT NOT NULL,
  email TEXT,
  created_at TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS tasks (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  task_id TEXT NOT NULL UNIQUE,
  title TEXT NOT NULL,
  details TEXT,
  due TEXT,
  priority TEXT NOT NULL,
  assignee_id TEXT,
  tags TEXT NOT NULL,
  checklist TEXT NOT NULL,
  related TEXT,
  status TEXT NOT NULL,
  result TEXT,
  minutes_spent INTEGER,
  created_at TEXT NOT NULL,
  completed_at TEXT,
  -- What lists are sorted by: the most urgent first, tasks without a due time last.
  rank INTEGER GENERATED ALWAYS AS
    (CASE priority WHEN 'urgent' THEN 0 WHEN 'high' THEN 1 WHEN 'normal' THEN 2 ELSE 3 END),
  due_rank TEXT GENERATED ALWAYS AS (coalesce(due, '~'))
);

CREATE TABLE IF NOT EXISTS deleted_tasks (
  task_id TEXT PRIMARY KEY,
  reason TEXT NOT NULL,
  deleted_at TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS notes (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  note_id TEXT NOT NULL UNIQUE,
  title TEXT NOT NULL,
  body TEXT NOT NULL,
  notebook TEXT NOT NULL,
  tags TEXT NOT NULL,
  created_at TEXT NOT NULL
);

CREATE VIRTUAL TABLE IF NOT EXISTS notes_text USING fts5 (title, body);

-- What a keyed call gave, so that the same call gives it again.
CREATE TABLE IF NOT EXISTS outcomes (
  tool_id TEXT NOT NULL,
  key TEXT NOT NULL,
  result TEXT NOT NULL,
  PRIMARY KEY (tool_id, key)
);
