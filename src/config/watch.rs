//! Follows the providers config on disk and tells what became of it.
//!
//! The file is read every [`LOOK_EVERY`] and compared by content: times and inodes say too little (a `ConfigMap` is a
//! symlink that is swapped; two writes fit into one tick of a file's time). A state counts when two looks in a row agree,
//! so that a file caught half-written is not taken for one with fewer entries. The comparison is [`ProvidersFile::look`],
//! without I/O; [`ProvidersFile::next_change`] adds the file and the clock. Knows nothing of what the entries are for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::providers::{self, Entry, Loaded, ProvidersError};

/// Often enough that a person who waits for it does not wonder, and nothing for a small file.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A file system that needs longer hangs. The read goes on in its thread, and no second one is started beside it.
const READ_WITHIN: Duration = Duration::from_secs(5);

type Read = Result<Vec<u8>, ProvidersError>;

/// What became of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Valid, and other entries than before: use these.
    Entries(Loaded),
    /// The file is bad; go on with the entries in use.
    Refused(ProvidersError),
    /// The file is good again and says what is in use already.
    Restored,
}

/// The file and what is in use of it.
#[derive(Debug)]
pub struct ProvidersFile {
    path: PathBuf,
    in_use: Vec<Entry>,
    refused: Option<ProvidersError>,
    /// What the last answer was about; looked at again only when it changes.
    settled: Option<Seen>,
    /// What the previous look saw.
    previous: Option<Seen>,
    /// A read that has not come back in time.
    reading: Option<JoinHandle<Read>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Content([u8; 32]),
    Trouble(String),
}

impl ProvidersFile {
    /// Follows `path`, of which `in_use` was loaded.
    pub fn new(path: PathBuf, in_use: &Loaded) -> Self {
        Self { path, in_use: in_use.entries.clone(), refused: None, settled: None, previous: None, reading: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why the file on disk is not the one in use, if so. For `/readyz?verbose` and `egress_config_reload_failed`.
    pub fn refused(&self) -> Option<&ProvidersError> {
        self.refused.as_ref()
    }

    /// Waits for the next change. Dropping the future loses nothing.
    pub async fn next_change(&mut self) -> Change {
        loop {
            sleep(LOOK_EVERY).await;
            if let Some(change) = self.look_once().await {
                return change;
            }
        }
    }

    /// One of the periodic looks: a change counts when two in a row agree on it.
    pub async fn look_once(&mut self) -> Option<Change> {
        let read = self.read().await;
        self.look(read)
    }

    /// Reads the file now and believes the first look: somebody asked for it (`/admin/reload`).
    pub async fn reload(&mut self) -> Option<Change> {
        let read = self.read().await;
        self.previous = Some(Seen::of(&read));
        self.settled = None;
        self.look(read)
    }

    async fn read(&mut self) -> Read {
        let path = self.path.clone();
        let reading = self.reading.get_or_insert_with(|| tokio::task::spawn_blocking(move || providers::read(&path)));
        let trouble = |why: &str| ProvidersError::Unreadable { path: self.path.clone(), why: why.to_owned() };
        match timeout(READ_WITHIN, reading).await {
            Err(_) => Err(trouble("cannot be read (its file system does not answer)")),
            Ok(finished) => {
                self.reading = None;
                finished.unwrap_or_else(|_| Err(trouble("cannot be read (the runtime is ending)")))
            }
        }
    }

    /// One look at the file: what is new, if two looks in a row agree on it.
    fn look(&mut self, read: Read) -> Option<Change> {
        let seen = Seen::of(&read);
        if self.previous.replace(seen.clone()).as_ref() != Some(&seen) || self.settled.as_ref() == Some(&seen) {
            return None;
        }
        self.settled = Some(seen);
        match read.and_then(|bytes| providers::parse(&self.path, &bytes)) {
            Err(error) => {
                self.refused = Some(error.clone());
                Some(Change::Refused(error))
            }
            Ok(loaded) if loaded.entries == self.in_use => self.refused.take().map(|_| Change::Restored),
            Ok(loaded) => {
                self.refused = None;
                self.in_use.clone_from(&loaded.entries);
                Some(Change::Entries(loaded))
            }
        }
    }
}

impl Seen {
    fn of(read: &Read) -> Self {
        match read {
            Ok(bytes) => Self::Content(Sha256::digest(bytes).into()),
            Err(error) => Self::Trouble(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "providers: [{name: a, type: process, ports: 31280-31281}]\n";
    const TWO: &str =
        "providers:\n- {name: a, type: process, ports: 31280-31281}\n- {name: b, type: process, ports: 31290-31291}\n";
    const BAD: &str = "providers: [{name: a, type: process}]\n";

    fn follower(text: &str) -> ProvidersFile {
        let path = PathBuf::from("p.yaml");
        let loaded = providers::parse(&path, text.as_bytes()).expect("valid");
        ProvidersFile::new(path, &loaded)
    }

    fn unreadable() -> Read {
        Err(ProvidersError::Unreadable { path: "p.yaml".into(), why: "cannot be read (gone)".into() })
    }

    /// What each look tells, as one word.
    fn looks(file: &mut ProvidersFile, reads: &[Read]) -> Vec<&'static str> {
        reads
            .iter()
            .map(|read| match file.look(read.clone()) {
                None => "-",
                Some(Change::Entries(_)) => "entries",
                Some(Change::Refused(_)) => "refused",
                Some(Change::Restored) => "restored",
            })
            .collect()
    }

    #[expect(clippy::unnecessary_wraps, reason = "a row mixes it with `unreadable`")]
    fn content(text: &str) -> Read {
        Ok(text.as_bytes().to_vec())
    }

    #[test]
    fn a_change_counts_when_two_looks_agree_and_is_told_once() {
        let half = &TWO[..TWO.len() / 2 + 7];
        let comment = format!("# a comment\n{ONE}");
        let rows: &[(&[Read], &[&str])] = &[
            (&[content(ONE), content(ONE), content(ONE)], &["-", "-", "-"]),
            (&[content(TWO), content(TWO), content(TWO)], &["-", "entries", "-"]),
            (&[content(half), content(TWO), content(TWO)], &["-", "-", "entries"]),
            (&[content(&comment), content(&comment)], &["-", "-"]),
            (&[content(BAD), content(BAD), content(BAD)], &["-", "refused", "-"]),
            (&[content(BAD), content(BAD), content(ONE), content(ONE)], &["-", "refused", "-", "restored"]),
            (&[content(BAD), content(BAD), content(TWO), content(TWO)], &["-", "refused", "-", "entries"]),
            (&[unreadable(), content(ONE), content(ONE)], &["-", "-", "-"]),
            (&[unreadable(), unreadable(), content(ONE), content(ONE)], &["-", "refused", "-", "restored"]),
            (&[content(TWO), content(TWO), content(ONE), content(ONE)], &["-", "entries", "-", "entries"]),
            (&[content(TWO), content(ONE), content(TWO), content(ONE)], &["-", "-", "-", "-"]),
        ];
        for (index, (reads, told)) in rows.iter().enumerate() {
            assert_eq!(looks(&mut follower(ONE), reads), *told, "row {index}");
        }
    }

    #[test]
    fn a_refused_file_leaves_its_reason_until_it_is_good() {
        let mut file = follower(ONE);
        looks(&mut file, &[content(BAD), content(BAD)]);
        assert!(file.refused().is_some_and(|e| e.to_string().contains("p.yaml:1:")), "{:?}", file.refused());
        looks(&mut file, &[content(ONE), content(ONE)]);
        assert_eq!(file.refused(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_swapped_symlink_is_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("v1"), ONE).expect("written");
        std::fs::write(at("v2"), TWO).expect("written");
        std::os::unix::fs::symlink(at("v1"), at("p.yaml")).expect("linked");
        let mut file = ProvidersFile::new(at("p.yaml"), &providers::load(&at("p.yaml")).expect("valid"));

        std::os::unix::fs::symlink(at("v2"), at("next")).expect("linked");
        std::fs::rename(at("next"), at("p.yaml")).expect("swapped");
        match file.next_change().await {
            Change::Entries(loaded) => assert_eq!(loaded.entries.len(), 2),
            other => panic!("{other:?}"),
        }

        std::fs::remove_file(at("p.yaml")).expect("removed");
        assert!(matches!(file.next_change().await, Change::Refused(ProvidersError::Unreadable { .. })));
        std::fs::copy(at("v1"), at("p.yaml")).expect("written");
        assert!(matches!(file.reload().await, Some(Change::Entries(loaded)) if loaded.entries.len() == 1));
        assert_eq!(file.reload().await, None, "nothing new");
    }
}
