-- Version 1. Times are wall time in microseconds since the Unix epoch; 0 means never.

-- One line for every domain that has tripped, was opened by hand or carries overrides.
-- There is no status column: opened_until alone says whether a circuit is open.
CREATE TABLE breaker (
    domain       TEXT    NOT NULL PRIMARY KEY,
    version      INTEGER NOT NULL,
    opened_at    INTEGER NOT NULL,
    opened_until INTEGER NOT NULL,
    opened_for   INTEGER NOT NULL,
    closed_at    INTEGER NOT NULL,
    strikes      INTEGER NOT NULL,
    opened_by    TEXT,               -- auto, manual, retry_after
    last_status  TEXT,               -- a status, or connect, timeout, tls
    last_host    TEXT,
    trip_count   INTEGER NOT NULL,
    overrides    TEXT                -- JSON: the keys that were set at run time
) STRICT, WITHOUT ROWID;

-- The audit trail. The newest ten thousand are kept.
CREATE TABLE event (
    id     INTEGER PRIMARY KEY,
    at     INTEGER NOT NULL,
    kind   TEXT    NOT NULL,
    domain TEXT,
    actor  TEXT    NOT NULL,         -- auto, or the name of the token
    detail TEXT    NOT NULL
) STRICT;

CREATE INDEX event_of_domain ON event (domain, id);
