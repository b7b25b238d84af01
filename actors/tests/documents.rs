//! The documents about providers agree with each other, and the claims that they name are those of the suite.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use egress_actors::domain::reason::Reason;

const CONTRACT: &str = "docs/provider-contract.md";
const TEMPLATE: &str = "docs/provider-spec-template.md";
const EXISTING: &str = "docs/providers-existing.md";
const INDEX: &str = "docs/providers.md";
/// The template, filled in for those that exist.
const FILLED: &[&str] = &["docs/provider-spec-process.md", "docs/provider-spec-kvm.md"];
/// What a person does about each reason.
const OPERATING: &str = "docs/operating.md";
const SUITE: &str = "actors/src/testkit/conformance.rs";

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(path_of(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A capital and a number: `A12`.
fn is_code(word: &str) -> bool {
    let number = word.strip_prefix(|first: char| first.is_ascii_uppercase());
    number.is_some_and(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()))
}

/// The codes with which lines begin, after `start`, in the order of the text.
fn codes(text: &str, start: &str) -> Vec<String> {
    let words = text.lines().filter_map(|line| line.strip_prefix(start)?.split_whitespace().next());
    words.map(|word| word.trim_end_matches(',')).filter(|word| is_code(word)).map(ToOwned::to_owned).collect()
}

fn axes(text: &str, start: &str) -> Vec<String> {
    codes(text, start).into_iter().filter(|code| code.starts_with('A')).collect()
}

/// Rules of the contract.
fn rules() -> Vec<String> {
    codes(&read(CONTRACT), "- **")
}

fn is_name(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// What stands between backticks and reads like a claim: a name of four words or more.
fn claims_in(text: &str) -> BTreeSet<String> {
    quoted(text)
        .into_iter()
        .filter(|word| is_name(word) && word.matches('_').count() > 2)
        .map(ToOwned::to_owned)
        .collect()
}

/// What stands between backticks, in the order of the text.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The rows of a table about an axis: what stands in the cells behind the first one.
fn answers<'a>(text: &'a str, axis: &str) -> Vec<&'a str> {
    let row = text.lines().find(|line| line.strip_prefix("| ").and_then(|row| row.split(' ').next()) == Some(axis));
    row.unwrap_or_else(|| panic!("no row of {axis}")).trim_end_matches('|').split(" | ").skip(1).collect()
}

/// The part of the contract below a heading.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let below = text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}")).1;
    below.split("\n## ").next().unwrap_or(below)
}

/// All Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a folder that can be read").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}

/// The reasons that the code of providers names, tests aside.
fn reasons_of_providers() -> BTreeSet<String> {
    let files = sources(&path_of("src/providers")).into_iter().filter(|path| !path.to_string_lossy().contains("tests"));
    let mut reasons = BTreeSet::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a source that can be read");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let named = code.split("Reason::").skip(1).filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
        // Those of other types end so too: `DisconnectReason::`.
        reasons.extend(named.filter(|name| Reason::parse(name).is_some()).map(ToOwned::to_owned));
    }
    reasons
}

/// The claims that `conformance_tests!` makes a test of.
fn suite() -> BTreeSet<String> {
    let source = read(SUITE);
    let list = source.split_once("@each $rig,").and_then(|(_, rest)| rest.split_once('}'));
    let (list, _) = list.unwrap_or_else(|| panic!("{SUITE}: the list of claims is not where it was"));
    list.split_whitespace().filter(|word| is_name(word)).map(ToOwned::to_owned).collect()
}

#[test]
fn each_axis_is_asked_in_the_template_and_answered_for_the_existing_providers() {
    let asked = axes(&read(CONTRACT), "| ");
    assert!(asked.len() >= 30, "axes go, or were not found: {asked:?}");
    for &page in [TEMPLATE].iter().chain(FILLED) {
        assert_eq!(axes(&read(page), "### "), asked, "{page}");
    }
    assert_eq!(axes(&read(EXISTING), "| "), asked, "{EXISTING}");
}

#[test]
fn what_an_existing_provider_answers_to_an_axis_of_words_is_one_of_them() {
    let (contract, existing) = (read(CONTRACT), read(EXISTING));
    let mut of_words = 0;
    for axis in axes(&contract, "| ") {
        let row = answers(&contract, &axis);
        let permitted = quoted(row[1]);
        // The others ask for a number, a place or words of the provider's own.
        if !row[1].split(" · ").all(|alternative| alternative.starts_with('`')) {
            continue;
        }
        of_words += 1;
        for answer in answers(&existing, &axis) {
            let word = quoted(answer).first().copied().unwrap_or_default();
            assert!(permitted.contains(&word), "{EXISTING}, {axis}: `{word}` is none of {permitted:?}");
        }
    }
    assert!(of_words >= 10, "{CONTRACT} was not understood: {of_words} axes of words");
}

#[test]
fn each_rule_has_a_row_in_the_template_and_each_gap_is_of_a_rule() {
    let rules = rules();
    assert!(rules.len() >= 110, "rules go, or were not found: {rules:?}");
    for &page in [TEMPLATE].iter().chain(FILLED) {
        assert_eq!(codes(&read(page), "| "), rules, "{page}");
    }
    let gaps = codes(&read(EXISTING), "| ").into_iter().filter(|code| !code.starts_with('A'));
    let unknown: Vec<_> = gaps.filter(|code| !rules.contains(code)).collect();
    assert!(unknown.is_empty(), "{EXISTING}: no such rules: {unknown:?}");
}

#[test]
fn no_code_stands_for_two_things() {
    let mut all = rules();
    all.extend(axes(&read(CONTRACT), "| "));
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "{all:?}");
}

#[test]
fn the_contract_names_every_claim_of_the_suite_and_no_other() {
    let (named, suite) = (claims_in(&read(CONTRACT)), suite());
    assert!(suite.contains("deleting_twice_is_once"), "{SUITE} was not understood: {suite:?}");
    assert_eq!(named.difference(&suite).collect::<Vec<_>>(), Vec::<&String>::new(), "not in the suite");
    assert_eq!(suite.difference(&named).collect::<Vec<_>>(), Vec::<&String>::new(), "behind no rule of {CONTRACT}");
}

#[test]
fn each_reason_that_a_provider_gives_has_its_row_and_each_row_is_of_a_reason_that_there_is() {
    let text = read(CONTRACT);
    let rows = section(&text, "Reasons").lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let told: BTreeSet<_> = rows.flat_map(|cell| cell.split('`').step_by(2)).map(ToOwned::to_owned).collect();
    let unknown: Vec<_> = told.iter().filter(|reason| Reason::parse(reason).is_none()).collect();
    assert!(unknown.is_empty(), "{CONTRACT}: no such reasons: {unknown:?}");
    let given = reasons_of_providers();
    assert!(given.contains("NameConflict"), "the sources were not understood: {given:?}");
    assert_eq!(given.difference(&told).collect::<Vec<_>>(), Vec::<&String>::new(), "without a row in {CONTRACT}");
}

#[test]
fn each_test_that_a_filled_in_template_names_is_there() {
    let folders = ["src", "tests", "actors/src", "actors/tests"];
    let files = folders.iter().flat_map(|folder| sources(&path_of(folder)));
    let code: String = files.map(|path| std::fs::read_to_string(path).expect("a source that can be read")).collect();
    for page in FILLED {
        let named = claims_in(&read(page));
        assert!(named.len() > 20, "{page} was not understood: {named:?}");
        let missing: Vec<_> = named.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
        assert!(missing.is_empty(), "{page} names tests that are not there: {missing:?}");
    }
}

/// What nothing proves is said in words that a reader can search for.
#[test]
fn nothing_is_open_in_what_is_filled_in() {
    for page in FILLED {
        let text = read(page).to_lowercase();
        // As a word: it may be a part of a test's name.
        let mut words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
        assert!(words.all(|word| word != "_open_"), "{page}");
    }
}

#[test]
fn each_reason_is_told_to_who_operates() {
    let text = read(OPERATING);
    let told: BTreeSet<_> = quoted(&text).into_iter().collect();
    let silent = Reason::ALL.iter().map(|reason| reason.as_str()).filter(|name| !told.contains(name));
    assert_eq!(silent.collect::<Vec<_>>(), Vec::<&str>::new(), "not in {OPERATING}");
}

#[test]
fn the_contract_names_no_provider_that_exists() {
    let text = read(CONTRACT);
    // A reason may have a name in it.
    let rest =
        text.split('`').filter(|word| Reason::parse(word).is_none()).collect::<Vec<_>>().join("`").to_lowercase();
    for name in ["`process`", "kubernetes", "kvm", "libvirt", "gcp", "proxmox"] {
        assert!(!rest.contains(name), "{CONTRACT} names {name}");
    }
}

#[test]
fn links_lead_to_files_that_are_there_and_the_index_is_found() {
    for &page in [CONTRACT, TEMPLATE, EXISTING, INDEX, OPERATING].iter().chain(FILLED) {
        let text = read(page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            assert!(path_of("docs").join(file).exists(), "{page} leads to {link}");
        }
    }
    for page in ["README.md", "docs/architecture.md"] {
        assert!(read(page).contains("providers.md"), "{page} does not lead to {INDEX}");
    }
}
