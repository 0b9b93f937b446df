//! Rows and events to SQL and back.
//!
//! SQLite's integers are signed: a number beyond them is written as the greatest one there is, which for
//! a time is far enough in the future.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, named_params, params};

use super::pending::{Change, MOST_EVENTS, Pending};
use super::{EventQuery, KEEP_ROWS};
use crate::core::key::DomainKey;
use crate::core::row::{Event, Row};
use crate::core::time::Micros;

/// Writes all of `batch` in one transaction, or nothing of it.
///
/// `IMMEDIATE`, because a transaction that takes the write lock only on its first write is refused at
/// once, whatever the timeout, when somebody else has written meanwhile.
pub(super) fn write(disk: &mut Connection, batch: &Pending) -> rusqlite::Result<()> {
    let tx = disk.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for (domain, change) in &batch.rows {
        match change {
            Change::Save(row) => upsert(&tx, row)?,
            Change::Remove => {
                tx.prepare_cached("DELETE FROM breaker WHERE domain = ?1")?.execute([domain.as_str()])?;
            }
        }
    }
    for event in &batch.events {
        insert(&tx, event)?;
    }
    if !batch.events.is_empty() {
        tx.prepare_cached("DELETE FROM event WHERE id <= (SELECT id FROM event ORDER BY id DESC LIMIT 1 OFFSET ?1)")?
            .execute([MOST_EVENTS as i64])?;
    }
    if let Some(now) = batch.prune {
        prune(&tx, now)?;
    }
    tx.commit()
}

/// Deletes what [`super::is_stale`] names. An override that can't be read any more keeps its row.
fn prune(tx: &Transaction<'_>, now: Micros) -> rusqlite::Result<usize> {
    tx.prepare_cached("DELETE FROM breaker WHERE overrides IS NULL AND opened_at < ?1 AND opened_until <= ?2")?
        .execute([signed(now.saturating_sub(KEEP_ROWS.micros())), signed(now)])
}

fn upsert(tx: &Transaction<'_>, row: &Row) -> rusqlite::Result<()> {
    let overrides = row.overrides.as_ref().and_then(|patch| match serde_json::to_string(patch) {
        Ok(json) => Some(json),
        Err(error) => {
            tracing::warn!(domain = %row.domain, %error, "an override can't be written and will not outlive a restart");
            None
        }
    });
    tx.prepare_cached(
        "INSERT OR REPLACE INTO breaker (domain, version, opened_at, opened_until, opened_for, closed_at, strikes,
             opened_by, last_status, last_host, trip_count, overrides)
         VALUES (:domain, :version, :opened_at, :opened_until, :opened_for, :closed_at, :strikes,
             :opened_by, :last_status, :last_host, :trip_count, :overrides)",
    )?
    .execute(named_params! {
        ":domain": row.domain.as_str(),
        ":version": signed(row.version),
        ":opened_at": signed(row.opened_at),
        ":opened_until": signed(row.opened_until),
        ":opened_for": signed(row.opened_for),
        ":closed_at": signed(row.closed_at),
        ":strikes": row.strikes,
        ":opened_by": row.opened_by.map(|opener| opener.name()),
        ":last_status": row.last_status.map(|cause| cause.to_string()),
        ":last_host": row.last_host,
        ":trip_count": signed(row.trip_count),
        ":overrides": overrides,
    })?;
    Ok(())
}

/// Inserts an event under its id, or under the next free one where another process took that.
///
/// An equal event that is there already stays the only one: a commit may have reached the disk although
/// it was reported as failed.
fn insert(tx: &Transaction<'_>, event: &Event) -> rusqlite::Result<()> {
    let mut insert = tx.prepare_cached(
        "INSERT INTO event (id, at, kind, domain, actor, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (id) DO NOTHING",
    )?;
    let mut taken_by_equal = tx.prepare_cached(
        "SELECT 1 FROM event WHERE id = ?1 AND at = ?2 AND kind = ?3 AND domain IS ?4 AND actor = ?5 AND detail = ?6",
    )?;
    let domain = event.domain.as_ref().map(DomainKey::as_str);
    let mut id = signed(event.id);
    loop {
        let values = params![id, signed(event.at), event.kind.name(), domain, event.by, event.detail];
        if insert.execute(values)? > 0 || taken_by_equal.exists(values)? {
            return Ok(());
        }
        let Some(next) = id.checked_add(1) else { return Ok(()) };
        id = next;
    }
}

/// Every row.
pub(super) fn rows(disk: &Connection) -> rusqlite::Result<Vec<Row>> {
    let mut select = disk.prepare("SELECT * FROM breaker ORDER BY domain")?;
    select.query_map([], row_of)?.collect()
}

fn row_of(line: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let domain = DomainKey::from_stored(&line.get::<_, String>("domain")?);
    let number = |name| line.get::<_, i64>(name).map(unsigned);
    let text = |name| line.get::<_, Option<String>>(name);
    let overrides = text("overrides")?.and_then(|json| match serde_json::from_str(&json) {
        Ok(patch) => Some(patch),
        Err(error) => {
            tracing::warn!(%domain, %error, "the stored override can't be read and is skipped: set it again");
            None
        }
    });
    Ok(Row {
        version: number("version")?,
        opened_at: number("opened_at")?,
        opened_until: number("opened_until")?,
        opened_for: number("opened_for")?,
        closed_at: number("closed_at")?,
        strikes: u32::try_from(number("strikes")?).unwrap_or(u32::MAX),
        opened_by: text("opened_by")?.and_then(|word| word.parse().ok()),
        last_status: text("last_status")?.and_then(|word| word.parse().ok()),
        last_host: text("last_host")?,
        trip_count: number("trip_count")?,
        overrides,
        domain,
    })
}

/// The greatest id of an event, 0 when there is none.
pub(super) fn last_event_id(disk: &Connection) -> rusqlite::Result<u64> {
    let last: Option<i64> = disk.query_row("SELECT max(id) FROM event", [], |line| line.get(0)).optional()?.flatten();
    Ok(last.map_or(0, unsigned))
}

/// The events that `query` asks for, newest first. A kind that this version does not know is left out.
pub(super) fn events(disk: &Connection, query: &EventQuery) -> rusqlite::Result<Vec<Event>> {
    let before = query.before.map_or(i64::MAX, signed);
    let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
    let found: Vec<Option<Event>> = match &query.domain {
        Some(domain) => disk
            .prepare_cached("SELECT * FROM event WHERE domain = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3")?
            .query_map(params![domain.as_str(), before, limit], event_of)?
            .collect::<rusqlite::Result<_>>()?,
        None => disk
            .prepare_cached("SELECT * FROM event WHERE id < ?1 ORDER BY id DESC LIMIT ?2")?
            .query_map(params![before, limit], event_of)?
            .collect::<rusqlite::Result<_>>()?,
    };
    Ok(found.into_iter().flatten().collect())
}

fn event_of(line: &rusqlite::Row<'_>) -> rusqlite::Result<Option<Event>> {
    let Ok(kind) = line.get::<_, String>("kind")?.parse() else { return Ok(None) };
    Ok(Some(Event {
        id: line.get("id").map(unsigned)?,
        at: line.get("at").map(unsigned)?,
        kind,
        domain: line.get::<_, Option<String>>("domain")?.map(|text| DomainKey::from_stored(&text)),
        by: line.get("actor")?,
        detail: line.get("detail")?,
    }))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
