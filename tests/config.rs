//! The configuration from outside: files, variables and flags in; values, or every problem with its place.

use std::path::Path;

use fusebox::config::{
    Config, ConnectPorts, Denied, Flags, Inputs, Loaded, Problems, Subject, data_dir, known_keys, load, variable,
};
use fusebox::core::policy::Limit;
use fusebox::core::time::Span;

const HASH: &str = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHRzb21lc2FsdA$FGtjcZ7r0sHJS5mT5EnCQsTZkzYHjLZ7Hh9aSeYjE5s";

/// A directory with `text` as its `config.toml`, and what a load of it depends on.
fn inputs(text: &str, env: &[(&str, &str)]) -> (tempfile::TempDir, Inputs) {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("config.toml"), text).expect("written");
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let inputs = Inputs { env, cwd: dir.path().to_owned(), ..Inputs::default() };
    (dir, inputs)
}

fn no_objection(_: &Config) -> Vec<(Subject, String)> {
    Vec::new()
}

fn load_text(text: &str, env: &[(&str, &str)]) -> Result<Loaded, Problems> {
    let (_dir, inputs) = inputs(text, env);
    load(&inputs, no_objection)
}

fn good(text: &str, env: &[(&str, &str)]) -> Loaded {
    load_text(text, env).unwrap_or_else(|problems| panic!("{text} {env:?}\n{problems}"))
}

fn bad(text: &str, env: &[(&str, &str)]) -> String {
    match load_text(text, env) {
        Ok(_) => panic!("accepted: {text} {env:?}"),
        Err(problems) => problems.to_string(),
    }
}

fn warnings(loaded: &Loaded) -> Vec<String> {
    loaded.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn nothing_at_all_is_the_default() {
    let dir = tempfile::tempdir().expect("a directory");
    let loaded = load(&Inputs { cwd: dir.path().to_owned(), ..Inputs::default() }, no_objection).expect("defaults");
    assert_eq!(loaded.config, Config::default());
    assert_eq!((loaded.path, loaded.warnings.len()), (None, 0));
    assert!(loaded.config.proxy.listen.ip().is_loopback() && loaded.config.admin.listen.ip().is_loopback());
}

#[test]
fn the_sample_is_the_default_and_has_every_key() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("config.toml");
    let text = std::fs::read_to_string(&sample).expect("the sample");
    let inputs = Inputs { file: Some(sample), cwd: "/".into(), ..Inputs::default() };
    let loaded = load(&inputs, no_objection).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(warnings(&loaded), Vec::<String>::new());
    let mut config = loaded.config;
    // Written out in the sample, they are the defaults: see the next assertion.
    let defaults = std::mem::take(&mut config.defaults);
    assert_eq!(config, Config::default());
    let (policy, _) = fusebox::core::policy::Policy::layered([(&defaults, fusebox::core::policy::Source::Config)]);
    assert_eq!(policy, fusebox::core::policy::Policy::default());

    let (mut table, mut written) = (String::new(), Vec::new());
    for line in text.lines() {
        let line = line.trim_start_matches("# ");
        if let Some(name) = line.strip_prefix('[') {
            table = name.split(']').next().unwrap_or_default().to_owned();
        } else if let Some((key, _)) = line.split_once(" = ") {
            written.push(format!("{table}.{}", key.trim()));
        }
    }
    let known = known_keys();
    assert!(known.len() > 50);
    for key in known {
        match key.strip_suffix(".*") {
            Some(table) => assert!(written.iter().any(|w| w.starts_with(&format!("{table}."))), "{key}"),
            None if key.starts_with("domains.") => {}
            None => assert_eq!(written.iter().filter(|w| **w == key).count(), 1, "{key}"),
        }
    }
}

#[test]
fn keys_that_are_wrong_are_named_with_line_and_advice() {
    for (text, expected) in [
        (
            "[proxy]\n[defaults]\nmin_sampels = 5\n",
            "config.toml:3:1: unknown key `min_sampels` in [defaults]: did you mean `min_error_ratio`?",
        ),
        (
            "listen = \"x\"\n",
            "config.toml:1:1: unknown key `listen` at the top level: it belongs in [proxy] or [admin]",
        ),
        (
            "[proxy]\nwindow = \"1s\"",
            "config.toml:2:1: unknown key `window` in [proxy]: it belongs in [defaults] or [domains.\"NAME\"]",
        ),
        (
            "[domains.\"medium.com\"]\n  max_eror = 1\n",
            "config.toml:2:3: unknown key `max_eror` in [domains.\"medium.com\"]: did you mean `max_errors`?",
        ),
        (
            "[domains]\n\"medium.com\" = { windw = \"1s\" }\n",
            "config.toml:2:18: unknown key `windw` in [domains.\"medium.com\"]: did you mean `window`?",
        ),
        (
            "\n[timeout]\nconnect = \"1s\"\n",
            "config.toml:2:2: unknown key `timeout` at the top level: did you mean `timeouts`?",
        ),
        ("[redis]\nzzz = \"h\"\n", "config.toml:2:1: unknown key `zzz` in [redis]: the keys here are url, ca_file"),
        ("proxy.lisen = \"x\"\n", "config.toml:1:7: unknown key `lisen` in [proxy]: did you mean `listen`?"),
    ] {
        assert_eq!(bad(text, &[]), expected, "{text}");
    }
}

#[test]
fn values_that_are_wrong_are_named_with_line_and_advice() {
    const BUDGET: &str = "a whole number of at least 1, or \"none\"";
    for (text, expected) in [
        ("defaults.requests_per_10s = 0", format!("1:29: defaults.requests_per_10s: 0 is not {BUDGET} (and at most 4294967295)")),
        ("defaults.requests_per_10s = -1", format!("1:29: defaults.requests_per_10s: -1 is not {BUDGET}")),
        (
            "defaults.requests_per_10s = nan",
            format!("1:29: defaults.requests_per_10s: this is a wrong value (floating point `NaN`): write {BUDGET}"),
        ),
        (
            "[domains.\"a.test\"]\nrequests_per_10s = inf",
            format!("2:20: domains.\"a.test\".requests_per_10s: this is a wrong value (floating point `inf`): write {BUDGET}"),
        ),
        ("defaults.min_error_ratio = 1.5", "1:28: defaults.min_error_ratio: 1.5 is not between 0.0 and 1.0".into()),
        ("defaults.min_error_ratio = nan", "1:28: defaults.min_error_ratio: NaN is not between 0.0 and 1.0".into()),
        (
            "[defaults]\nwindow = 60",
            "2:10: defaults.window: `60` has no unit: write it as \"60s\" (units: ms, s, m, h, d)".into(),
        ),
        ("[defaults]\nwindow = \"0s\"", "2:10: defaults.window: must be longer than zero".into()),
        ("[timeouts]\ntls = \"0s\"", "2:7: timeouts.tls: must be longer than zero".into()),
        (
            "[timeouts]\ntls = 10",
            "2:7: timeouts.tls: `10` has no unit: write it as \"10s\" (units: ms, s, m, h, d)".into(),
        ),
        (
            "[defaults]\nmode = \"on\"",
            "2:8: defaults.mode: `on` is not possible here: write one of `enforce`, `report`, `off`".into(),
        ),
        (
            "[proxy]\nopen = \"yes\"",
            "2:8: proxy.open: this is a wrong value (string \"yes\"): write true or false".into(),
        ),
        (
            "[proxy]\nlisten = \"localhost\"",
            "2:10: proxy.listen: `localhost` is no address: write IP and port such as \"127.0.0.1:3128\" or \"[::1]:3128\"".into(),
        ),
        (
            "[proxy]\nallow_clients = [\"10.0.0.0/8\", \"10.0.0.0/40\"]",
            "2:32: proxy.allow_clients: `10.0.0.0/40` is no network: write for instance \"10.0.0.0/8\"".into(),
        ),
        ("[limits]\nmax_header_bytes = 10", "2:20: limits.max_header_bytes: 10 is not a whole number from 8192 to 16777216".into()),
        ("[egress]\nconnect_ports = [443, 0]", "2:23: egress.connect_ports: 0 is not a whole number from 1 to 65535".into()),
        ("[egress]\nconnect_ports = [65536]", "2:18: egress.connect_ports: 65536 is not a whole number from 1 to 65535".into()),
        ("[egress]\nproxy = \"socks5h://u:geheim@h\"", "2:9: egress.proxy: a parent proxy is not available in this version: take the key out".into()),
        ("[https]\nmode = \"intercept\"", "2:8: https.mode: interception is not available in this version: write \"tunnel\"".into()),
        ("[egress.resolve]\n\"a.test\" = \"b.test\"", "2:12: egress.resolve.\"a.test\": `b.test` is no IP address".into()),
        (
            "[egress.resolve]\n\"http://a.test\" = \"127.0.0.1\"",
            "2:1: egress.resolve.\"http://a.test\": `http://a.test` is no host name: write it without scheme, port and path".into(),
        ),
        ("[egress.resolve]\n\"A.test\" = \"127.0.0.1\"\n\"a.test.\" = \"127.0.0.2\"", "3:1: egress.resolve.\"a.test\": `a.test` is named twice: keep one".into()),
        ("[groups]\nm = \"a.test\"", "2:5: groups.m: a single text stands where a list is wanted: put it in [ ]".into()),
        ("proxy = 1", "1:9: proxy: this must be a table, in [ ] on a line of its own or in { }".into()),
        ("defaults = [\"report\"]", "1:12: defaults: this must be a table, in [ ] on a line of its own or in { }".into()),
        ("[[domains]]", "1:1: domains: this must be a table, in [ ] on a line of its own or in { }".into()),
        ("[domains]\n\"a.test\" = [\"report\"]", "2:12: domains.\"a.test\": this must be a table, in [ ] on a line of its own or in { }".into()),
        ("[groups.m]\na = 1", "1:1: groups.m: this is a wrong value (map): write a list, written in [ ]".into()),
        ("[keys]\nlist = \"\"", "2:8: keys.list: an empty path".into()),
    ] {
        assert_eq!(bad(text, &[]), format!("config.toml:{expected}"), "{text}");
    }
}

#[test]
fn syntax_errors_have_line_and_column() {
    for (text, expected) in [
        ("[proxy]\nopen = true\nopen = false\n", "config.toml:3:1: `open` is written twice: keep one of them"),
        ("[proxy]\n[proxy]\n", "config.toml:2:2: `proxy` is written twice: keep one of them"),
    ] {
        assert_eq!(bad(text, &[]), expected);
    }
    for (text, place) in [
        ("[proxy\nopen = true", "config.toml:1:7: not TOML: "),
        ("[proxy]\nlisten = 127.0.0.1\n", "config.toml:2:15: not TOML: invalid float (a text needs quotes, \"…\")"),
        ("[proxy]\nopen = yes\n", "config.toml:2:8: not TOML: "),
        ("a", "config.toml:1:2: not TOML: "),
        ("\u{feff}[proxy]\r\nopen = yes\r\n", "config.toml:2:8: not TOML: "),
    ] {
        let problems = bad(text, &[]);
        assert!(problems.starts_with(place), "{problems}");
    }
}

#[test]
fn every_problem_of_a_file_is_told_in_reading_order() {
    let text = r#"
colour = "red"
[proxy]
listen = "0.0.0.0:99999"
users = ["bob", "eve:hunter2"]
[defaults]
max_errors = -1
window = "0s"
open_grwth = 2
[domains."a.test"]
mode = "x"
[limits]
max_headers = 1
"#;
    let lines: Vec<String> = bad(text, &[]).lines().map(|line| line.chars().take(18).collect()).collect();
    let places = ["2:1", "4:10", "5:10", "5:17", "7:14", "8:10", "9:1", "11:8", "13:15"];
    assert_eq!(lines.len(), places.len(), "{lines:#?}");
    for (line, place) in lines.iter().zip(places) {
        assert!(line.starts_with(&format!("config.toml:{place}")), "{line} {place}");
    }
}

#[test]
fn more_mistakes_than_anyone_reads_come_to_an_end() {
    let text: String =
        std::iter::once("[defaults]\n".to_owned()).chain((0..2_000).map(|i| format!("x{i} = 1\n"))).collect();
    assert!(bad(&text, &[]).lines().count() < 300);
}

#[test]
fn an_open_proxy_must_be_meant() {
    let refused = bad("[proxy]\nlisten = \"0.0.0.0:3128\"\n", &[]);
    assert!(refused.starts_with("config.toml:2:10: proxy.listen: 0.0.0.0:3128 is not a loopback address"), "{refused}");
    for way in ["`users`", "`allow_clients`", "`open = true`"] {
        assert!(refused.contains(way), "{refused}");
    }
    assert!(bad("", &[("FUSEBOX_PROXY__LISTEN", "[::]:3128")]).starts_with("FUSEBOX_PROXY__LISTEN: "));
    for guard in ["open = true", "allow_clients = [\"10.0.0.0/8\"]", &format!("users = [\"bob:{HASH}\"]")] {
        let loaded = good(&format!("[proxy]\nlisten = \"0.0.0.0:3128\"\n{guard}\n"), &[]);
        assert_eq!(loaded.warnings.len(), usize::from(guard == "open = true"));
    }
    for loopback in ["127.8.9.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        good(&format!("proxy.listen = \"{loopback}\""), &[]);
    }
    good("admin.listen = \"0.0.0.0:3129\"", &[]);
}

#[test]
fn listeners_may_not_share_a_port() {
    let expected = "admin.listen: proxy.listen (127.0.0.1:3128) and admin.listen (127.0.0.1:3128) want the same port: change one of them";
    assert_eq!(bad("[admin]\nlisten = \"127.0.0.1:3128\"", &[]), format!("config.toml:2:10: {expected}"));
    assert!(bad("proxy.listen = \"127.0.0.1:3129\"", &[]).starts_with("config.toml:1:16: proxy.listen: "));
    good("proxy.listen = \"127.0.0.1:0\"\nadmin.listen = \"127.0.0.1:0\"", &[]);
}

#[test]
fn an_opening_above_its_cap_is_mentioned() {
    let cap = "`open_for` (30d) is longer than its cap `max_open_for` (7d): lower the one or raise the other";
    let said = |text: &str| warnings(&good(text, &[]));
    assert_eq!(said("[defaults]\nopen_for = \"30d\""), [format!("config.toml:2:12: defaults.open_for: {cap}")]);
    assert_eq!(
        said("[defaults]\n[domains.\"a.test\"]\nopen_for = \"30d\""),
        [format!("config.toml:3:12: domains.\"a.test\".open_for: {cap}")]
    );
    assert!(said("defaults.max_open_for = \"1m\"")[0].starts_with("config.toml:1:25: defaults.max_open_for: "));
    let none = said("[defaults]\nopen_for = \"30d\"\nmax_open_for = \"60d\"\n[domains.\"a.test\"]\nopen_for = \"50d\"");
    assert!(none.is_empty(), "{none:?}");
}

#[test]
fn users_are_parsed_and_never_shown() {
    let loaded = good(&format!("proxy.users = [\"bob:{HASH}\"]\nredis.url = \"redis://:geheim@h\""), &[]);
    assert_eq!(loaded.config.proxy.users[0].name, "bob");
    assert_eq!(loaded.config.proxy.users[0].hash.expose(), HASH);
    let shown = format!("{loaded:?}");
    assert!(!shown.contains("argon2id") && !shown.contains("geheim"), "{shown}");
    assert_eq!(
        warnings(&loaded),
        ["config.toml:2:13: redis.url: shared state is not available in this version: every count stays local"]
    );
    for (users, told) in [
        ("[\"geheim\"]", "a user without a `:`"),
        ("[\":geheim\"]", "a user without a name"),
        ("[\"bob:geheim\"]", "no hash follows the first `:`"),
        (&format!("[\"a:b:{HASH}geheim\"]"), "no hash follows the first `:`"),
        ("[\"bob:$geheim\"]", "a hash of another kind"),
        ("[\"bob:$argon2id$v=19$geheim\"]", "a hash that is"),
        ("[\"bob:$argon2id$v=19$m=1,t=geheim$c29tZXNhbHQ$c29tZXNhbHRzb21lc2FsdA\"]", "a hash that is"),
        ("\"bob:geheim\"", "a single text stands where a list is wanted"),
        ("{ geheim = 1 }", "this is a wrong value (map)"),
        (&format!("[\"bob:{HASH}\", \"bob:{HASH}\"]"), "the user `bob` is named twice"),
    ] {
        let problems = bad(&format!("[proxy]\nusers = {users}"), &[]);
        assert!(problems.starts_with("config.toml:2:") && problems.contains(told), "{problems}");
        assert!(!problems.contains("geheim") && !problems.contains("argon2id$v"), "{problems}");
    }
    for (name, text) in
        [("REDIS_URL", "geheim"), ("FUSEBOX_REDIS__URL", "http://geheim"), ("FUSEBOX_PROXY__USERS", "bob:geheim")]
    {
        let problems = bad("", &[(name, text)]);
        assert!(problems.starts_with(name) && !problems.contains("geheim"), "{problems}");
    }
}

#[test]
fn control_characters_are_refused() {
    for text in [
        "admin.hosts = [\"a\\r\\nb\"]",
        "[groups]\nm = [\"a.test\\u0000\"]",
        "[domains.\"a\\nb\"]\nmax_errors = 1",
        "keys.list = \"a\\nb\"",
        "egress.resolve.\"a\\rb\" = \"127.0.0.1\"",
    ] {
        let problems = bad(text, &[]);
        assert!(problems.contains("a control character"), "{problems}");
        assert!(!problems.contains(char::is_control), "{problems:?}");
    }
}

#[test]
fn variables_beat_the_file_and_flags_beat_variables() {
    let (_dir, mut inputs) = inputs("proxy.listen = \"127.0.0.1:1\"", &[("FUSEBOX_PROXY__LISTEN", "127.0.0.1:2")]);
    assert_eq!(load(&inputs, no_objection).expect("good").config.proxy.listen.port(), 2);
    inputs.flags = Flags { listen: Some("127.0.0.1:3".into()), ..Flags::default() };
    assert_eq!(load(&inputs, no_objection).expect("good").config.proxy.listen.port(), 3);
    inputs.flags.admin_listen = Some("nowhere".into());
    let problems = load(&inputs, no_objection).expect_err("bad").to_string();
    assert!(problems.starts_with("--admin-listen: admin.listen: `nowhere` is no address"), "{problems}");
}

#[test]
fn any_key_can_be_set_by_the_environment() {
    let users = format!("bob:{HASH},eve:{HASH}");
    let env = [
        ("FUSEBOX_PROXY__USERS", users.as_str()),
        ("FUSEBOX_PROXY__ALLOW_CLIENTS", "10.0.0.0/8, ::1"),
        ("FUSEBOX_PROXY__OPEN", " true "),
        ("FUSEBOX_ADMIN__HOSTS", "A.example"),
        ("FUSEBOX_DEFAULTS__ERRORS", "429,connect"),
        ("FUSEBOX_DEFAULTS__REQUESTS_PER_10S", "none"),
        ("FUSEBOX_DEFAULTS__WINDOW", "1m30s"),
        ("FUSEBOX_DOMAINS__MEDIUM.COM__MAX_ERRORS", "5"),
        ("FUSEBOX_DOMAINS__MEDIUM.COM__MAX_IN_FLIGHT", "7"),
        ("FUSEBOX_GROUPS__BLOGS", "a.test,b.test"),
        ("FUSEBOX_EGRESS__CONNECT_PORTS", "443,8443"),
        ("FUSEBOX_EGRESS__DENY", "[\"private\", \"8.8.8.8\"]"),
        ("FUSEBOX_EGRESS__RESOLVE__*.A.TEST", "127.0.0.1,::1"),
        ("FUSEBOX_EGRESS__RESOLVE__B.TEST", "127.0.0.1"),
        ("FUSEBOX_LOG__LEVEL", ""),
        ("FUSEBOX_LOG__FORMAT", "  "),
        ("FUSEBOX_CONFIG", ""),
        ("FUSEBOX_DATA_DIR", "/x"),
        ("REDIS_URL", " "),
        ("HOME", "/home/x"),
    ];
    let loaded = good("[domains.\"Medium.com\"]\nmax_errors = 9\nwindow = \"5s\"\n[log]\naccess = true", &env);
    let config = &loaded.config;
    assert_eq!(warnings(&loaded), Vec::<String>::new());
    assert_eq!(config.proxy.users.iter().map(|user| user.name.as_str()).collect::<Vec<_>>(), ["bob", "eve"]);
    assert_eq!(config.proxy.allow_clients.len(), 2);
    assert!(config.proxy.open && config.log.access);
    assert_eq!(config.admin.hosts, ["a.example"]);
    assert!(config.defaults.errors.as_ref().is_some_and(|errors| errors.has_status(429) && !errors.has_status(500)));
    assert_eq!(config.defaults.requests_per_10s, Some(Limit::None));
    assert_eq!(config.defaults.window, Some(Span::seconds(90)));
    assert!(
        !format!("{:?}", Inputs { env: vec![("REDIS_URL".into(), "geheim".into())], ..Inputs::default() })
            .contains("geheim")
    );
    let (name, medium) = &config.domains[0];
    assert_eq!((name.as_str(), medium.max_errors, medium.window), ("Medium.com", Some(5), Some(Span::seconds(5))));
    assert_eq!((config.domains.len(), medium.max_in_flight), (1, Some(Limit::Of(7))));
    assert_eq!(config.groups, [("blogs".to_owned(), vec!["a.test".to_owned(), "b.test".to_owned()])]);
    assert_eq!(config.egress.connect_ports, ConnectPorts::Only(vec![443, 8443]));
    assert!(matches!(config.egress.deny[..], [Denied::Private, Denied::Net(net)] if net.prefix_len() == 32));
    let resolve: Vec<(&str, usize)> =
        config.egress.resolve.iter().map(|(name, to)| (name.as_str(), to.len())).collect();
    assert_eq!(resolve, [("*.a.test", 2), ("b.test", 1)]);
}

#[test]
fn a_list_of_one_and_a_word_in_place_of_a_list() {
    for (text, ports) in
        [("443", ConnectPorts::Only(vec![443])), ("any", ConnectPorts::Any), ("[]", ConnectPorts::Only(vec![]))]
    {
        assert_eq!(good("", &[("FUSEBOX_EGRESS__CONNECT_PORTS", text)]).config.egress.connect_ports, ports);
    }
}

#[test]
fn a_table_in_a_variable_is_laid_over_the_file() {
    let text = "[domains.\"a.test\"]\nmax_errors = 1\nwindow = \"5s\"";
    let env = [("FUSEBOX_DOMAINS", "{ \"a.test\" = { max_errors = 7 }, \"b.test\" = { max_errors = 8 } }")];
    let domains = good(text, &env).config.domains;
    let read: Vec<_> = domains.iter().map(|(name, patch)| (name.as_str(), patch.max_errors, patch.window)).collect();
    assert_eq!(read, [("a.test", Some(7), Some(Span::seconds(5))), ("b.test", Some(8), None)]);
    let problems = bad(text, &[("FUSEBOX_DOMAINS__A.TEST", "{ max_eror = 7 }")]);
    assert_eq!(
        problems,
        "FUSEBOX_DOMAINS__A.TEST: unknown key `max_eror` in [domains.\"a.test\"]: did you mean `max_errors`?"
    );
}

#[test]
fn variables_with_bad_values_are_problems_that_name_them() {
    for (name, text, told) in [
        ("FUSEBOX_DEFAULTS__WINDOW", "60", "defaults.window: `60` has no unit: write it as \"60s\""),
        ("FUSEBOX_DEFAULTS__WINDOW", "0s", "defaults.window: must be longer than zero"),
        (
            "FUSEBOX_DEFAULTS__MAX_ERRORS",
            "many",
            "defaults.max_errors: this is a wrong value (string \"many\"): write a whole number",
        ),
        ("FUSEBOX_DEFAULTS__REQUESTS_PER_10S", "0", "defaults.requests_per_10s: 0 is not"),
        ("FUSEBOX_EGRESS__CONNECT_PORTS", "443,0", "egress.connect_ports: 0 is not"),
        ("FUSEBOX_PROXY__ALLOW_CLIENTS", "10.0.0.0/8,x", "proxy.allow_clients: `x` is no network"),
        ("FUSEBOX_DOMAINS__A.TEST__MODE", "on", "domains.\"a.test\".mode: `on` is not possible here"),
    ] {
        let problems = bad("", &[(name, text)]);
        assert!(problems.starts_with(&format!("{name}: {told}")), "{problems}");
        assert_eq!(problems.lines().count(), 1);
    }
}

#[test]
fn variables_that_are_no_keys_are_warned_about() {
    let env = [
        ("FUSEBOX_PROXY_LISTEN", "127.0.0.1:9"),
        ("FUSEBOX_DEFAULTS__MAX_EROR", "1"),
        ("FUSEBOX_SERVICE_HOST", "10.0.0.1"),
        ("FUSEBOX_PORT", "tcp://10.0.0.1:80"),
        ("FUSEBOX_PROXY", "tcp://10.0.0.1:80"),
    ];
    let told = warnings(&good("", &env));
    assert_eq!(told.len(), env.len(), "{told:#?}");
    for (warning, expected) in [
        (
            &told[0],
            "FUSEBOX_DEFAULTS__MAX_EROR: this variable sets no key and is ignored: did you mean FUSEBOX_DEFAULTS__MAX_ERRORS?",
        ),
        (
            &told[3],
            "FUSEBOX_PROXY_LISTEN: this variable sets no key and is ignored: did you mean FUSEBOX_PROXY__LISTEN?",
        ),
        (&told[4], "FUSEBOX_SERVICE_HOST: this variable sets no key and is ignored"),
    ] {
        assert_eq!(warning, expected);
    }
}

#[test]
fn every_known_key_has_a_variable() {
    for key in known_keys() {
        let name = variable(key.split('.').map(|name| if name == "*" { "a.test" } else { name }));
        let told = match load_text("", &[(&name, "\u{1}")]) {
            Ok(loaded) => panic!("{name}: {:?}", loaded.warnings),
            Err(problems) => problems.to_string(),
        };
        assert!(told.starts_with(&format!("{name}: ")), "{told}");
    }
}

#[test]
fn names_are_judged_by_the_caller_and_placed() {
    let text = "[domains.\"Example.com\"]\nmax_errors = 1\n[domains.\"example.com.\"]\nmax_errors = 2\n[groups]\nm = [\"a.test\",\n  \"b.test\"]\n";
    let (_dir, inputs) = inputs(text, &[]);
    let judge = |config: &Config| {
        let twice = config.domains.iter().position(|(name, _)| name.ends_with('.')).expect("there");
        assert_eq!(config.groups[0].1[1], "b.test");
        vec![
            (Subject::Group(0, Some(1)), "member".to_owned()),
            (Subject::Group(0, None), "group".to_owned()),
            (Subject::Domain(twice), "twice".to_owned()),
        ]
    };
    let problems = load(&inputs, judge).expect_err("bad").to_string();
    let expected = [
        "config.toml:3:10: domains.\"example.com.\": twice",
        "config.toml:6:1: groups.m: group",
        "config.toml:7:3: groups.m: member",
    ];
    assert_eq!(problems.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_damaged_entry_is_not_complained_about_twice() {
    let (_dir, inputs) = inputs("[domains.\"dead.a.test\"]\nkey = \"hots\"\n", &[]);
    let judge = |_: &Config| vec![(Subject::Domain(0), "needs key = \"host\"".to_owned())];
    assert_eq!(load(&inputs, judge).expect_err("bad").problems.len(), 1);
}

#[test]
fn files_are_found_beside_the_configuration() {
    let text = "keys.list = \"list.dat\"\n[egress]\nca_file = \"gone.pem\"\n";
    let (dir, mut inputs) = inputs(text, &[]);
    std::fs::write(dir.path().join("list.dat"), "com").expect("written");
    inputs.file = Some("config.toml".into());
    let problems = load(&inputs, no_objection).expect_err("bad").to_string();
    assert!(problems.starts_with("config.toml:3:11: egress.ca_file: can't use `"), "{problems}");
    assert!(problems.contains("gone.pem") && problems.lines().count() == 1, "{problems}");
    std::fs::write(dir.path().join("gone.pem"), "").expect("written");
    let problems = load(&inputs, no_objection).expect_err("bad").to_string();
    assert!(problems.contains("config.toml:3:11") && problems.contains("no certificate"), "{problems}");
    let key = rcgen::generate_simple_self_signed(["a.test".to_owned()]).expect("a certificate");
    std::fs::write(dir.path().join("gone.pem"), key.cert.pem()).expect("written");
    let loaded = load(&inputs, no_objection).expect("good");
    assert_eq!(loaded.config.keys.list, Some(dir.path().join("list.dat")));
    assert_eq!(loaded.path, Some(dir.path().join("config.toml")));
}

#[test]
fn the_file_is_the_named_one() {
    let (dir, mut inputs) = inputs("log.access = true", &[("FUSEBOX_CONFIG", "other.toml")]);
    let problems = load(&inputs, no_objection).expect_err("bad").to_string();
    assert!(problems.starts_with("other.toml: can't read the configuration: "), "{problems}");
    std::fs::write(dir.path().join("other.toml"), "log.level = \"warn\"").expect("written");
    assert!(!load(&inputs, no_objection).expect("good").config.log.access);
    inputs.file = Some(dir.path().join("config.toml"));
    assert!(load(&inputs, no_objection).expect("good").config.log.access);
    std::fs::write(dir.path().join("config.toml"), b"a = 1\nb = \"\xff\"").expect("written");
    let problems = load(&inputs, no_objection).expect_err("bad").to_string();
    assert!(problems.ends_with("config.toml:2:6: this is not UTF-8: save the file as UTF-8"), "{problems}");
}

#[test]
fn the_data_directory_is_the_first_that_is_named() {
    let mut env: Vec<(String, String)> = Vec::new();
    let dir = |env: &[(String, String)], flag: Option<&str>| {
        let flags = Flags { data_dir: flag.map(Into::into), ..Flags::default() };
        data_dir(&Inputs { env: env.to_vec(), flags, cwd: "/cwd".into(), file: None })
    };
    assert_eq!(dir(&env, None), None);
    for (name, value, expected) in [
        ("HOME", "/home/x", "/home/x/.local/state/fusebox"),
        ("XDG_STATE_HOME", "relative", "/home/x/.local/state/fusebox"),
        ("XDG_STATE_HOME", "/state", "/state/fusebox"),
        ("STATE_DIRECTORY", "/var/lib/a:/var/lib/b", "/var/lib/a"),
        ("FUSEBOX_DATA_DIR", " ", "/var/lib/a"),
        ("FUSEBOX_DATA_DIR", "data", "/cwd/data"),
    ] {
        env.push((name.to_owned(), value.to_owned()));
        assert_eq!(dir(&env, None).as_deref(), Some(Path::new(expected)), "{name}={value}");
    }
    assert_eq!(dir(&env, Some("/flag")).as_deref(), Some(Path::new("/flag")));
}
