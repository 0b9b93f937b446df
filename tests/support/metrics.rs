//! Prometheus text, read leniently.

/// The sum of every series that `selector` names: `name` or `name{label="value",…}`.
pub fn sum(text: &str, selector: &str) -> f64 {
    let (name, labels) = selector.trim_end_matches('}').split_once('{').unwrap_or((selector, ""));
    let wanted: Vec<&str> = labels.split(',').filter(|label| !label.is_empty()).collect();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let matching = lines.filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (own, labels) = series.trim_end_matches('}').split_once('{').unwrap_or((series, ""));
        (own == name && wanted.iter().all(|label| labels.contains(label))).then(|| value.parse::<f64>().ok())?
    });
    matching.sum()
}

/// True if there is a series with this name, whatever its labels.
pub fn has(text: &str, name: &str) -> bool {
    text.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
}

/// How many series there are.
pub fn series(text: &str) -> usize {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count()
}
