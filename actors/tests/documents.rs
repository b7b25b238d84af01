//! The documents about providers agree with each other, and the claims that they name are those of the suite.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const CONTRACT: &str = "docs/provider-contract.md";
const TEMPLATE: &str = "docs/provider-spec-template.md";
const EXISTING: &str = "docs/providers-existing.md";
const INDEX: &str = "docs/providers.md";
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
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|word| is_name(word) && word.matches('_').count() > 2).map(ToOwned::to_owned).collect()
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
    assert!(asked.len() >= 28, "axes go, or were not found: {asked:?}");
    assert_eq!(axes(&read(TEMPLATE), "### "), asked, "{TEMPLATE}");
    assert_eq!(axes(&read(EXISTING), "| "), asked, "{EXISTING}");
}

#[test]
fn each_rule_has_a_row_in_the_template_and_each_gap_is_of_a_rule() {
    let rules = rules();
    assert!(rules.len() >= 105, "rules go, or were not found: {rules:?}");
    assert_eq!(codes(&read(TEMPLATE), "| "), rules, "{TEMPLATE}");
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
fn the_contract_names_no_provider_that_exists() {
    let text = read(CONTRACT).to_lowercase();
    for name in ["`process`", "kubernetes", "kvm", "libvirt", "gcp", "proxmox"] {
        assert!(!text.contains(name), "{CONTRACT} names {name}");
    }
}

#[test]
fn links_lead_to_files_that_are_there_and_the_index_is_found() {
    for page in [CONTRACT, TEMPLATE, EXISTING, INDEX] {
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
