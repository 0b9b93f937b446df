//! The Public Suffix List's own test vectors, and a second opinion on every one of its rules.

use std::path::Path;

use fusebox::core::key::{Host, PublicSuffixes, SuffixList};
use publicsuffix::{List, Psl};

/// `input expected`, for a run without the official file.
const COMMITTED: &str = "
example.COM example.com
WwW.example.COM example.com
b.example.example example.example
a.b.domain.biz domain.biz
a.b.example.uk.com example.uk.com
a.b.c.mm b.c.mm
www.test.ac.jp test.ac.jp
a.b.ide.kyoto.jp b.ide.kyoto.jp
a.b.c.kobe.jp b.c.kobe.jp
www.city.kobe.jp city.kobe.jp
a.b.test.ck b.test.ck
www.www.ck www.ck
www.test.k12.ak.us test.k12.ak.us
www.食狮.公司.cn 食狮.公司.cn
shishi.中国 shishi.中国
www.xn--85x722f.xn--55qx5d.cn xn--85x722f.xn--55qx5d.cn
";

fn canonical(text: &str) -> String {
    Host::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).to_string()
}

fn check(input: &str, expected: &str) {
    let (name, expected) = (canonical(input), canonical(expected));
    assert_eq!(SuffixList::built_in().registrable(&name, PublicSuffixes::All), expected, "{input}");
}

#[test]
fn k2_committed_vectors() {
    let vectors: Vec<_> = COMMITTED.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(vectors.len(), 16);
    vectors.into_iter().for_each(|(input, expected)| check(input, expected));
}

/// The official file is not ours to ship with the source; it is run where it lies beside it.
#[test]
fn k2_official_vectors() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/psl/test_psl.txt");
    let Ok(text) = std::fs::read_to_string(&file) else {
        eprintln!("skipped: no {}", file.display());
        return;
    };
    let mut count = 0;
    for line in text.lines() {
        let Some(arguments) = line.strip_prefix("checkPublicSuffix(") else { continue };
        let quoted: Vec<_> = arguments.split('\'').collect();
        if let [_, input, _, expected, _] = quoted[..] {
            check(input, expected);
            count += 1;
        }
    }
    assert!(count >= 50, "only {count} vectors");
}

/// Two labels below every rule, where both ways of walking the list must agree.
#[test]
fn another_implementation_agrees_on_every_rule() {
    let text = include_str!("../data/public_suffix_list.dat");
    let other: List = text.parse().expect("the other implementation reads the list");
    let ours = SuffixList::parse(text).expect("ours reads the list");
    let mut count = 0;
    for rule in text.lines().filter_map(|line| line.split_whitespace().next()).filter(|rule| !rule.starts_with("//")) {
        let base = canonical(rule.trim_start_matches('!').trim_start_matches("*."));
        for name in [format!("zz.yy.{base}"), format!("zz.yy.xx.{base}")] {
            let domain = other.domain(name.as_bytes()).expect("a registrable domain");
            let theirs = std::str::from_utf8(domain.as_bytes()).expect("ASCII");
            assert_eq!(ours.registrable(&name, PublicSuffixes::All), theirs, "{name} by {rule}");
            count += 1;
        }
    }
    assert_eq!(count, 2 * ours.count());
}
