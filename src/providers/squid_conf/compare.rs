//! In which ways a configuration that is in use is not the one that would be written now.

use std::collections::BTreeSet;

/// Begins a comment that names what is open, for people and for [`differences`].
pub(super) const OPEN_TO: &str = "# open to ";

/// More would drown the rest of the message.
const NAMED: usize = 4;

/// Which subject a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Reach,
    Auth,
    Other,
}

impl Subject {
    fn of(line: &str) -> Self {
        let auth = ["auth_param ", "acl known ", "http_access deny !known"];
        if auth.iter().any(|start| line.starts_with(start)) {
            Self::Auth
        } else if line.starts_with("acl ") || line.starts_with("http_access ") {
            Self::Reach
        } else {
            Self::Other
        }
    }
}

/// One sentence for each way, in words for people; none if the two mean the same.
pub fn differences(in_use: &str, wanted: &str) -> Vec<String> {
    let mut found = Vec::new();
    let differ = |subject| !lines(in_use, subject).eq(lines(wanted, subject));
    if differ(Subject::Reach) {
        let (old, new) = (openings(in_use), openings(wanted));
        let closed: Vec<&str> = old.difference(&new).copied().collect();
        let opened: Vec<&str> = new.difference(&old).copied().collect();
        if !closed.is_empty() {
            found.push(format!("it still reaches {}, which is not allowed any more", some_of(&closed)));
        }
        if !opened.is_empty() {
            found.push(format!("it does not reach {}, which is allowed now", some_of(&opened)));
        }
        if found.is_empty() {
            found.push("its rules of what it may reach are not those of now".to_owned());
        }
    }
    if differ(Subject::Auth) {
        found.push("it asks for credentials in another way than `auth` says".to_owned());
    }
    if differ(Subject::Other) {
        found.push("its other settings are not those of now".to_owned());
    }
    found
}

/// What counts of a configuration, of one subject.
fn lines(conf: &str, subject: Subject) -> impl Iterator<Item = &str> {
    let counts = |line: &&str| !line.is_empty() && !line.starts_with('#');
    conf.lines().filter(counts).filter(move |line| Subject::of(line) == subject)
}

fn openings(conf: &str) -> BTreeSet<&str> {
    conf.lines().filter_map(|line| line.strip_prefix(OPEN_TO)).flat_map(|rest| rest.split(' ')).collect()
}

fn some_of(names: &[&str]) -> String {
    let shown = names[..names.len().min(NAMED)].join(", ");
    if names.len() > NAMED { format!("{shown} and {} more", names.len() - NAMED) } else { shown }
}
