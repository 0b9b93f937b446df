//! What people do to breakers from the command line, all through the admin port.

use http::Method;
use serde_json::{Map, Value, json};

use super::client::{Client, breaker_path};
use super::print::{out, plain, printable, state, table};
use crate::core::time::Span;

/// Every breaker, as a table or as JSON.
pub(super) fn list(client: &Client, as_json: bool) -> anyhow::Result<()> {
    let rows = rows(client)?;
    if as_json {
        out(format_args!("{:#}\n", json!({ "breakers": rows })))?;
        return Ok(());
    }
    if rows.is_empty() {
        out(format_args!("no breakers: no domain has errors, an override, or was opened in the last 30 days\n"))?;
        return Ok(());
    }
    let head = ["DOMAIN", "STATE", "BY", "LAST", "HOST", "TRIPS", "ERRORS", "OVERRIDES"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let mut line = vec![plain(&row["domain"]), state(row)];
        line.extend(
            ["opened_by", "last_status", "last_host", "trip_count", "errors_in_window"].map(|key| plain(&row[key])),
        );
        line.push(overrides(row));
        line
    }));
    out(format_args!("{}", table(&lines)))?;
    Ok(())
}

fn rows(client: &Client) -> anyhow::Result<Vec<Value>> {
    let (mut rows, mut path) = (Vec::new(), "/api/v1/breakers".to_owned());
    loop {
        let mut page = client.done(Method::GET, &path, None)?;
        if let Some(more) = page["breakers"].as_array_mut() {
            rows.append(more);
        }
        match page["next"].as_str() {
            Some(next) => path = breaker_path(next).replacen("breakers/", "breakers?after=", 1),
            None => return Ok(rows),
        }
    }
}

/// `max_errors=5 open_for=30m`, or `-`.
fn overrides(row: &Value) -> String {
    let policy = row["policy"].as_object().into_iter().flatten();
    let set = policy.filter(|(_, value)| value["source"] == "override");
    let set: Vec<String> = set.map(|(key, value)| format!("{}={}", printable(key), plain(&value["value"]))).collect();
    if set.is_empty() { "-".to_owned() } else { set.join(" ") }
}

/// Opens a circuit.
pub(super) fn open(client: &Client, domain: &str, length: Option<Span>) -> anyhow::Result<()> {
    let body = length.map_or(json!({}), |length| json!({ "for": length }));
    let row = client.done(Method::POST, &format!("{}/open", breaker_path(domain)), Some(&body))?;
    tell(&row)
}

/// Closes a circuit.
pub(super) fn close(client: &Client, domain: &str) -> anyhow::Result<()> {
    let row = client.done(Method::POST, &format!("{}/close", breaker_path(domain)), Some(&json!({})))?;
    tell(&row)
}

/// Sets and clears overrides.
pub(super) fn set(client: &Client, domain: &str, values: Vec<(String, Value)>) -> anyhow::Result<()> {
    let changes = Value::Object(Map::from_iter(values));
    let row = client.done(Method::PATCH, &breaker_path(domain), Some(&changes))?;
    out(format_args!("{}: overrides {}\n", plain(&row["domain"]), overrides(&row)))?;
    Ok(())
}

/// Takes a row away.
pub(super) fn reset(client: &Client, domain: &str) -> anyhow::Result<()> {
    client.done(Method::DELETE, &breaker_path(domain), None)?;
    out(format_args!("{}: back to the configured policy\n", printable(domain)))?;
    Ok(())
}

fn tell(row: &Value) -> anyhow::Result<()> {
    out(format_args!("{}: {}\n", plain(&row["domain"]), state(row)))?;
    Ok(())
}

/// Reads `key=value`. What reads as a number, as true or false, or as a JSON list is that; a text with commas is
/// a list of texts; nothing, or null, clears.
pub(super) fn assignment(text: &str) -> Result<(String, Value), String> {
    let (key, value) = text.split_once('=').ok_or("write key=value")?;
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() {
        return Err("write key=value".to_owned());
    }
    let texts = || value.split(',').map(|word| Value::from(word.trim())).collect();
    let value = match serde_json::from_str::<Value>(value) {
        _ if value.is_empty() => Value::Null,
        Ok(Value::Null) => Value::Null,
        Ok(list @ Value::Array(_)) => list,
        // 429 is a number, but here it is a list of one
        _ if key == "errors" => texts(),
        Ok(value) => value,
        Err(_) if value.contains(',') => texts(),
        Err(_) => value.into(),
    };
    Ok((key.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_read_as_people_mean_them() {
        for (text, value) in [
            ("max_errors=5", json!(5)),
            ("half_open=false", json!(false)),
            ("min_error_ratio=0.5", json!(0.5)),
            ("open_for=30m", json!("30m")),
            ("requests_per_10s=none", json!("none")),
            ("requests_per_10s=", Value::Null),
            ("max_errors = null", Value::Null),
            ("errors=429", json!(["429"])),
            ("errors=429, 5xx,connect", json!(["429", "5xx", "connect"])),
            ("errors=[\"429\",503]", json!(["429", 503])),
        ] {
            let key = text.split('=').next().unwrap_or_default().trim();
            assert_eq!(assignment(text), Ok((key.to_owned(), value)), "{text}");
        }
        assert!(assignment("max_errors").is_err());
        assert!(assignment("=5").is_err());
    }
}
