//! The table of the specification and the cases from the field, through the public interface.

use proptest::prelude::*;

use super::*;
use crate::core::policy::KeyScope::{self, Host as PerHost, Registrable};

type Sections<'a> = &'a [(&'a str, Option<KeyScope>)];
type Groups<'a> = &'a [(&'a str, &'a [&'a str])];

fn build(
    which: PublicSuffixes,
    default_scope: KeyScope,
    sections: Sections,
    groups: Groups,
) -> Result<KeyRules, Vec<KeyRuleError>> {
    let sections: Vec<_> = sections.iter().map(|(name, scope)| ((*name).to_owned(), *scope)).collect();
    let groups: Vec<_> = groups
        .iter()
        .map(|(name, members)| ((*name).to_owned(), members.iter().map(|m| (*m).to_owned()).collect()))
        .collect();
    KeyRules::new(SuffixList::built_in(), which, default_scope, &sections, &groups)
}

fn icann(sections: Sections, groups: Groups) -> KeyRules {
    build(PublicSuffixes::Icann, Registrable, sections, groups).expect("rules")
}

fn all(sections: Sections, groups: Groups) -> KeyRules {
    build(PublicSuffixes::All, Registrable, sections, groups).expect("rules")
}

fn key(rules: &KeyRules, text: &str) -> String {
    rules.resolve_text(text).map_or_else(|error| format!("{error:?}"), |resolved| resolved.key.to_string())
}

fn key_and_section(rules: &KeyRules, text: &str) -> (String, Option<String>) {
    let resolved = rules.resolve_text(text).expect("a host");
    (resolved.key.to_string(), resolved.section.map(|section| section.to_string()))
}

fn assert_keys(rules: &KeyRules, table: &[(&str, &str)]) {
    for (text, wanted) in table {
        assert_eq!(key(rules, text), *wanted, "{text}");
    }
}

/// The place and the message of every mistake.
fn mistakes(sections: Sections, groups: Groups) -> Vec<(Place, String)> {
    let errors = build(PublicSuffixes::Icann, Registrable, sections, groups).expect_err("mistakes");
    errors.into_iter().map(|error| (error.place, error.to_string())).collect()
}

#[test]
fn the_table_of_the_specification() {
    let table = [
        ("maximebeauchemin.medium.com", "medium.com"),
        ("MEDIUM.com.", "medium.com"),
        ("medium.com:8080", "medium.com"),
        ("a.b.example.co.uk", "example.co.uk"),
        ("x.y.pvt.k12.ma.us", "y.pvt.k12.ma.us"),
        ("user.github.io", "github.io"),
        ("co.uk", "co.uk"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:80", "192.0.2.7"),
        ("192.0.2.7:8080", "192.0.2.7:8080"),
        ("[2001:DB8::1]", "[2001:db8::1]"),
        ("[2001:db8:0::1]:443", "[2001:db8::1]"),
        ("[2001:db8::1]:8080", "[2001:db8::1]:8080"),
        ("[::ffff:192.0.2.7]:81", "192.0.2.7:81"),
        ("feeds", "feeds"),
        ("Feeds.", "feeds"),
        ("feeds:443", "feeds"),
        ("feeds:8080", "feeds:8080"),
        ("127.1", "NotDottedQuad"),
        ("0x1", "NotDottedQuad"),
        ("2130706433", "NotDottedQuad"),
        ("a..b", "EmptyLabel"),
        ("[fe80::1%25eth0]", "ZoneId"),
    ];
    assert_keys(&icann(&[], &[]), &table);
    assert_eq!(key(&all(&[], &[]), "user.github.io"), "user.github.io");
}

#[test]
fn k1_one_site_with_many_spellings_is_one_key() {
    assert_keys(
        &icann(&[], &[]),
        &[
            ("http://EXAMPLE.test/", "example.test"),
            ("http://example.test./", "example.test"),
            ("http://www.example.test:8080/", "example.test"),
            ("WwW.Example.TEST.:443", "example.test"),
            ("http://a.b.example.test/", "example.test"),
            ("HTTPS://user:p@ss@example.test?q=@x", "example.test"),
            ("wss://example.test#f", "example.test"),
            ("example.test..", "EmptyLabel"),
            ("http://example.test../", "EmptyLabel"),
            ("ftp://example.test/", "Scheme"),
            ("http:///x", "Empty"),
        ],
    );
}

#[test]
fn k2_the_lists_own_table() {
    let table = [
        ("b.co.uk", "b.co.uk"),
        ("a.b.co.uk", "b.co.uk"),
        ("x.pvt.k12.ma.us", "x.pvt.k12.ma.us"),
        ("y.x.pvt.k12.ma.us", "x.pvt.k12.ma.us"),
        ("www.test.k12.ak.us", "test.k12.ak.us"),
        ("a.b.example.example", "example.example"),
        ("a.b.ide.kyoto.jp", "b.ide.kyoto.jp"),
        ("www.city.kobe.jp", "city.kobe.jp"),
        ("a.b.c.kobe.jp", "b.c.kobe.jp"),
        ("www.www.ck", "www.ck"),
        ("test.ck", "test.ck"),
    ];
    assert_keys(&icann(&[], &[]), &table);
    assert_keys(&all(&[], &[]), &table);
}

#[test]
fn k4_private_suffixes_count_only_when_asked() {
    assert_keys(
        &all(&[], &[]),
        &[
            ("alice.github.io", "alice.github.io"),
            ("x.bob.github.io", "bob.github.io"),
            ("github.io", "github.io"),
            ("data.s3.amazonaws.com", "data.s3.amazonaws.com"),
            ("a.tumblr.com", "tumblr.com"),
            ("b.tumblr.com", "tumblr.com"),
        ],
    );
    assert_keys(
        &icann(&[], &[]),
        &[
            ("alice.github.io", "github.io"),
            ("bob.github.io", "github.io"),
            ("data.s3.amazonaws.com", "amazonaws.com"),
            ("a.tumblr.com", "tumblr.com"),
            ("x.blogspot.co.uk", "blogspot.co.uk"),
        ],
    );
}

#[test]
fn k4_the_configuration_can_merge_and_split() {
    let merged = all(&[("group:pages", None), ("a.b.tumblr.com", Some(PerHost))], &[("pages", &["github.io"])]);
    for text in ["alice.github.io", "x.bob.github.io", "github.io", "group:pages"] {
        assert_eq!(key_and_section(&merged, text), ("group:pages".into(), Some("group:pages".into())), "{text}");
    }
    assert_keys(
        &merged,
        &[("a.b.tumblr.com", "a.b.tumblr.com"), ("b.tumblr.com", "tumblr.com"), ("x.a.b.tumblr.com", "tumblr.com")],
    );
    assert!(merged.list_date().starts_with("20"), "{}", merged.list_date());
}

#[test]
fn k6_unicode_and_punycode_are_one_key() {
    let rules = all(&[("食狮.公司.cn", None), ("faß.test", None), ("ExAmPlE.org.", None)], &[]);
    assert_keys(
        &rules,
        &[
            ("xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
            ("www.xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
            ("www.食狮.公司.cn", "xn--85x722f.xn--55qx5d.cn"),
            ("shishi.xn--55qx5d.cn", "shishi.xn--55qx5d.cn"),
            ("xn--55qx5d.cn", "xn--55qx5d.cn"),
            ("xn--0000h.test", "Idna"),
        ],
    );
    for (text, section) in [
        ("www.xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
        ("a.xn--fa-hia.test", "xn--fa-hia.test"),
        ("www.example.ORG", "example.org"),
    ] {
        assert_eq!(key_and_section(&rules, text), (section.into(), Some(section.into())), "{text}");
    }
    assert_eq!(key_and_section(&rules, "fass.test").1, None);
}

#[test]
fn keys_are_shown_in_unicode_where_that_differs() {
    for (key, unicode) in [
        ("xn--bcher-kva.example", Some("bücher.example")),
        ("xn--85x722f.xn--55qx5d.cn", Some("食狮.公司.cn")),
        ("xn--bcher-kva:8080", Some("bücher:8080")),
        ("xn--0000h.test", None),
        ("example.com", None),
        ("group:medium", None),
        ("[2001:db8::1]:8080", None),
    ] {
        assert_eq!(to_unicode(key).as_deref(), unicode, "{key}");
    }
}

#[test]
fn a_section_with_key_host_narrows_the_domain_to_its_hosts() {
    let rules = icann(&[("example.com", Some(PerHost)), ("other.com", None)], &[]);
    for host in ["example.com", "www.example.com", "a.b.example.com"] {
        assert_eq!(key_and_section(&rules, host), (host.into(), Some("example.com".into())), "{host}");
    }
    assert_eq!(key_and_section(&rules, "www.other.com"), ("other.com".into(), Some("other.com".into())));
    let by_default = build(PublicSuffixes::Icann, PerHost, &[("wide.com", Some(Registrable)), ("a.b.com", None)], &[]);
    let by_default = by_default.expect("rules");
    for (host, key, section) in [
        ("www.example.com", "www.example.com", None),
        ("www.wide.com", "wide.com", Some("wide.com")),
        ("a.b.com", "a.b.com", Some("a.b.com")),
        ("x.a.b.com", "x.a.b.com", None),
    ] {
        assert_eq!(key_and_section(&by_default, host), (key.into(), section.map(Into::into)), "{host}");
    }
}

#[test]
fn a_section_below_a_domain_splits_off_just_that_host() {
    let rules = icann(&[("dead.example.com", Some(PerHost)), ("example.com", None), ("feeds:8080", None)], &[]);
    for (text, key, section) in [
        ("dead.example.com:8443", "dead.example.com", Some("dead.example.com")),
        ("x.dead.example.com", "example.com", Some("example.com")),
        ("live.example.com", "example.com", Some("example.com")),
        ("feeds:8080", "feeds:8080", Some("feeds:8080")),
        ("feeds", "feeds", None),
    ] {
        assert_eq!(key_and_section(&rules, text), (key.into(), section.map(Into::into)), "{text}");
    }
}

#[test]
fn the_most_specific_rule_wins() {
    let rules = icann(
        &[("dead.medium.com", Some(PerHost)), ("pub.com", None)],
        &[("medium", &["Medium.com", "towardsdatascience.com"]), ("deep", &["*.x.pub.com"]), ("wide", &["*.pub.com"])],
    );
    for (host, key, rule) in [
        ("dead.medium.com", "dead.medium.com", "section for this host alone"),
        ("a.medium.com", "group:medium", "member medium.com of the group"),
        ("towardsdatascience.com", "group:medium", "member towardsdatascience.com of the group"),
        ("a.b.x.pub.com", "group:deep", "member *.x.pub.com of the group"),
        ("x.pub.com", "group:wide", "member *.pub.com of the group"),
        ("pub.com", "pub.com", "registrable domain below the public suffix com"),
        ("a.example.co.uk", "example.co.uk", "registrable domain below the public suffix co.uk"),
        ("co.uk", "co.uk", "itself a public suffix"),
        ("192.0.2.7", "192.0.2.7", "IP address, kept whole"),
        ("feeds", "feeds", "name without a dot, kept whole"),
        ("group:8080", "group:8080", "name without a dot, kept whole"),
        ("group:deep", "group:deep", "the group itself"),
    ] {
        let resolved = rules.resolve_text(host).expect("a host");
        assert_eq!((resolved.key.as_str(), resolved.rule.to_string().as_str()), (key, rule), "{host}");
    }
    assert_eq!(rules.resolve_text("group:none"), Err(HostError::UnknownGroup));
}

#[test]
fn mistakes_in_sections_are_named_with_their_place() {
    let found = mistakes(
        &[
            ("Example.com", None),
            ("example.com.", None),
            ("dead.example.com", None),
            ("medium.com", Some(PerHost)),
            ("a.pub.com:8080", Some(PerHost)),
            ("group:none", None),
            ("group:medium", Some(PerHost)),
            ("a\"\r\nb", None),
            ("2001:db8::1", None),
        ],
        &[("medium", &["medium.com"])],
    );
    let wanted = [
        (1, r#"domains."example.com.": the same domain as domains."Example.com""#),
        (
            2,
            r#"domains."dead.example.com": a host below example.com; set key = "host" to give this host a breaker of its own, or name example.com"#,
        ),
        (3, r#"domains."medium.com": a member of groups.medium; its policy stands in domains."group:medium""#),
        (
            4,
            r#"domains."a.pub.com:8080": a port is part of the key only for IP addresses and names without a dot; leave it out"#,
        ),
        (5, r#"domains."group:none": there is no group none in [groups]"#),
        (6, r#"domains."group:medium": a group shares one breaker, key = "host" contradicts that"#),
        (7, r#"domains."a\"\r\nb": a host cannot have the character U+0022"#),
        (8, r#"domains."2001:db8::1": an IPv6 address must stand in brackets, such as [2001:db8::1]"#),
    ];
    let wanted: Vec<_> = wanted.into_iter().map(|(index, text)| (Place::Section(index), text.to_owned())).collect();
    assert_eq!(found, wanted);
}

#[test]
fn mistakes_in_groups_are_named_with_their_place() {
    let found = mistakes(
        &[],
        &[
            ("Medium", &["medium.com"]),
            ("8080", &[]),
            ("a", &["*.pub.com", "pub.com", "PUB.com.", "x.pub.com", "192.0.2.7", "feeds", "b.com:8080", "%"]),
            ("b", &["pub.com", "*.PUB.com", "*.*.com"]),
        ],
    );
    let member = |group, member| Place::Member { group, member };
    let name =
        "a group's name is up to 63 lower-case letters, digits, `-` and `_`, starting with a letter, such as `medium`";
    let domain = "a member is a registrable domain (all its hosts) or `*.` and a name (all hosts below it)";
    let wanted = [
        (Place::Group(0), format!(r#"groups."Medium": {name}"#)),
        (Place::Group(1), format!(r#"groups."8080": {name}"#)),
        (
            member(2, 3),
            "groups.a: x.pub.com: a host below pub.com; write \"*.x.pub.com\" for all hosts below it, or pub.com"
                .to_owned(),
        ),
        (member(2, 4), format!("groups.a: 192.0.2.7: {domain}")),
        (member(2, 5), format!("groups.a: feeds: {domain}")),
        (member(2, 6), format!("groups.a: b.com:8080: {domain}")),
        (member(2, 7), "groups.a: %: a host cannot have the character %".to_owned()),
        (member(3, 0), "groups.b: pub.com: already in groups.a".to_owned()),
        (member(3, 1), "groups.b: *.pub.com: already in groups.a".to_owned()),
        (member(3, 2), "groups.b: *.com: a host cannot have the character *".to_owned()),
    ];
    assert_eq!(found, wanted);
}

#[test]
fn a_section_that_a_wildcard_member_covers_is_a_mistake_unless_it_splits_off_a_host() {
    let groups: Groups = &[("pages", &["*.github.io"])];
    let section = |scope| build(PublicSuffixes::All, Registrable, &[("a.github.io", scope)], groups);
    assert!(matches!(section(None).expect_err("a mistake")[0].problem, KeyProblem::SectionOfMember { .. }));
    let rules = section(Some(PerHost)).expect("rules");
    assert_keys(&rules, &[("a.github.io", "a.github.io"), ("x.a.github.io", "group:pages")]);
    assert_keys(&rules, &[("b.github.io", "group:pages"), ("github.io", "github.io")]);
}

#[test]
fn a_section_has_one_canonical_name() {
    let rules = icann(&[], &[("medium", &["medium.com"])]);
    for (text, name) in [
        ("Example.COM.", "example.com"),
        ("食狮.公司.cn", "xn--85x722f.xn--55qx5d.cn"),
        ("[2001:DB8::1]:8080", "[2001:db8::1]:8080"),
        ("feeds:80", "feeds"),
        ("group:medium", "group:medium"),
    ] {
        assert_eq!(rules.canonical_section(text), Ok(DomainKey::from_stored(name)), "{text}");
    }
}

proptest! {
    #[test]
    fn resolving_minds_neither_case_nor_a_trailing_dot(
        name in "[a-z]{1,3}(\\.(medium|github|dead|a|b)){0,3}\\.(com|io|co\\.uk|xn--55qx5d\\.cn|kobe\\.jp|test)",
        port in proptest::option::of(1..=u16::MAX),
    ) {
        let rules = icann(
            &[("dead.medium.com", Some(PerHost)), ("a.io", Some(PerHost))],
            &[("g", &["github.com", "*.b.com"])],
        );
        let resolve = |text: &str| Host::parse(text).map(|host| rules.resolve(&host, port));
        let plain = resolve(&name)?;
        prop_assert_eq!(&resolve(&name.to_uppercase())?, &plain);
        prop_assert_eq!(&resolve(&format!("{name}."))?, &plain);
        let again = rules.resolve_text(plain.key.as_str())?;
        prop_assert_eq!(again.key, plain.key, "a key resolves to itself");
    }
}
