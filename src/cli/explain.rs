//! Which domain a URL counts for, by which rule, what applies to it, and how it is now.

use std::process::ExitCode;

use http::{Method, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{Client, NotRunning, breaker_path};
use super::print::{out, plain, printable, state};
use crate::admin::EffectivePolicy;
use crate::app;
use crate::config::{Inputs, Loaded};
use crate::core::key::to_unicode;
use crate::core::layers::Policies;

/// What is known about one URL.
#[derive(Serialize)]
struct Explained {
    url: String,
    domain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain_unicode: Option<String>,
    rule: String,
    /// The section whose policy applies.
    section: Option<String>,
    list_date: String,
    /// Every value with its source, overrides included where a proxy runs.
    policy: Value,
    /// The row of the running proxy; null where it has none, or none runs.
    row: Value,
    /// The state in the running proxy.
    state: Option<String>,
    /// Why the state is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_unknown: Option<String>,
}

/// Explains every URL; exit code 1 if one has no domain.
pub(super) fn run(inputs: &Inputs, urls: &[String], as_json: bool) -> anyhow::Result<ExitCode> {
    let Loaded { config, .. } = app::load(inputs)?;
    let policies = app::policies(&config, Default::default()).map_err(app::StartError::List)?;
    let mut client = Client::new(inputs, &config).map_err(|error| format!("{error:#}"));
    let mut code = ExitCode::SUCCESS;
    let mut results = Vec::new();
    for url in urls {
        match explain(&policies, url) {
            Ok(mut explained) => {
                ask(&mut client, &mut explained);
                if !as_json {
                    out(format_args!("{}", text(&explained)))?;
                }
                results.push(serde_json::to_value(&explained)?);
            }
            Err(error) => {
                code = ExitCode::FAILURE;
                if !as_json {
                    eprintln!("{}: {error}", printable(url));
                }
                results.push(json!({ "url": url, "error": error }));
            }
        }
    }
    if as_json {
        out(format_args!("{:#}\n", json!({ "results": results })))?;
    }
    Ok(code)
}

fn explain(policies: &Policies, url: &str) -> Result<Explained, String> {
    let resolved = policies.keys.resolve_text(url).map_err(|error| error.to_string())?;
    let (policy, sources) = policies.describe(&resolved);
    Ok(Explained {
        url: url.to_owned(),
        domain: resolved.key.to_string(),
        domain_unicode: to_unicode(resolved.key.as_str()),
        rule: resolved.rule.to_string(),
        section: resolved.section.map(|section| section.to_string()),
        list_date: policies.keys.list_date().to_owned(),
        policy: serde_json::to_value(EffectivePolicy::new(&policy, &sources)).map_err(|error| error.to_string())?,
        row: Value::Null,
        state: None,
        state_unknown: None,
    })
}

/// Adds what the running proxy knows. One that does not answer is not asked again.
fn ask(client: &mut Result<Client, String>, explained: &mut Explained) {
    let answer = match client {
        Ok(client) => client.call(Method::GET, &breaker_path(&explained.domain), None),
        Err(why) => {
            explained.state_unknown = Some(why.clone());
            return;
        }
    };
    match answer {
        Ok((StatusCode::OK, row)) => {
            explained.state = row["state"].as_str().map(str::to_owned);
            explained.policy = row["policy"].clone();
            explained.row = row;
        }
        Ok((StatusCode::NOT_FOUND, _)) => explained.state = Some("closed".to_owned()),
        Ok((StatusCode::UNAUTHORIZED, _)) => {
            explained.state_unknown = Some("the running Fusebox has another token".to_owned())
        }
        Ok((status, _)) => explained.state_unknown = Some(format!("the admin port answered {status}")),
        Err(error) => {
            let why = if error.is::<NotRunning>() { "no Fusebox is running".to_owned() } else { format!("{error:#}") };
            explained.state_unknown = Some(why.clone());
            *client = Err(why);
        }
    }
}

fn text(explained: &Explained) -> String {
    let domain = match &explained.domain_unicode {
        Some(unicode) => format!("{} ({})", explained.domain, printable(unicode)),
        None => explained.domain.clone(),
    };
    let state = match (&explained.row, &explained.state, &explained.state_unknown) {
        (Value::Null, Some(state), _) => state.clone(),
        (Value::Null, None, why) => format!("not known: {}", printable(why.as_deref().unwrap_or_default())),
        (row, ..) => match (&row["opened_by"], &row["last_status"]) {
            (Value::Null, _) => state(row),
            (by, Value::Null) => format!("{}, last opened by {}", state(row), plain(by)),
            (by, status) => format!(
                "{}, last opened by {} ({} from {})",
                state(row),
                plain(by),
                plain(status),
                plain(&row["last_host"])
            ),
        },
    };
    let mut text = format!(
        "{}\n  domain   {}\n  rule     {}\n  section  {}\n  list     Public Suffix List of {}\n  state    {state}\n  policy\n",
        printable(&explained.url),
        printable(&domain),
        printable(&explained.rule),
        printable(explained.section.as_deref().unwrap_or("none")),
        printable(&explained.list_date),
    );
    // JSON objects are sorted by name; the documentation's order reads better
    for key in crate::core::policy::PolicyPatch::KEYS {
        let value = &explained.policy[*key];
        text.push_str(&format!("    {key:<17} {:<16} {}\n", plain(&value["value"]), plain(&value["source"])));
    }
    text
}
