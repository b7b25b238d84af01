//! The directory of manifests, looked at again and again.
//!
//! A look is either a complete [`View`] of DIR or an error; never a part of it. Read are the regular files `*.yaml` and
//! `*.yml` of DIR itself (symbolic links are followed, folders are not entered, names that begin with a dot are editors'
//! and mounts' own). Polling, and not inotify: a mounted `ConfigMap` changes by a swap of symbolic links, network file
//! systems send no events, and a removal needs a second look in any case.
//!
//! Used by the watching thread only: all of it may block, and a dead network mount may block it for good. Nothing else
//! waits for it.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::documents::{self, Content};
use super::view::View;

/// Larger files are not manifests that somebody wrote for us.
const FILE_MAX: u64 = 4 * 1024 * 1024;

/// A change within one tick of the file system's clock leaves no trace in the time stamps; so a file is read again in
/// this many looks after its last visible change.
const LOOKS_AFTER_CHANGE: u8 = 3;

/// DIR cannot be read: nothing is known to be gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) message: String,
}

/// Reads DIR, and remembers what it read.
#[derive(Debug)]
pub(super) struct Reader {
    dir: PathBuf,
    known: BTreeMap<Arc<str>, Known>,
    read: fn(&[u8]) -> Content,
}

#[derive(Debug, Clone)]
struct Known {
    stamp: Option<Stamp>,
    /// Of the bytes; the same ones are not parsed again.
    digest: u64,
    looks_left: u8,
    content: Arc<Content>,
}

/// What changes when a file does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Reader {
    pub(super) fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), known: BTreeMap::new(), read: documents::read }
    }

    /// One look. A file that vanishes while we look is not in it; removals are only believed after a second look.
    pub(super) fn look(&mut self) -> Result<View, Unreadable> {
        let mut view = View::default();
        let mut next = BTreeMap::new();
        for entry in fs::read_dir(&self.dir).map_err(|e| self.unreadable(&e))? {
            let name = entry.map_err(|e| self.unreadable(&e))?.file_name();
            let Some(name) = manifest_name(&name.to_string_lossy()) else { continue };
            let path = self.dir.join(&*name);
            if let Some(known) = self.read_file(&path, self.known.get(&name)) {
                view.files.insert(Arc::clone(&name), Arc::clone(&known.content));
                next.insert(name, known);
            }
        }
        self.known = next;
        Ok(view)
    }

    fn unreadable(&self, error: &io::Error) -> Unreadable {
        let message = format!(
            "manifests directory `{}` cannot be read: {error}: nothing is removed until it can be; check --standalone",
            self.dir.display()
        );
        Unreadable { message }
    }

    /// `None` if there is no such file any more.
    fn read_file(&self, path: &Path, known: Option<&Known>) -> Option<Known> {
        let broken = |message: String| {
            let content = Content::unreadable(0, message);
            // The same trouble keeps its content, so that it is reported once.
            let content = known.filter(|k| *k.content == content).map_or_else(|| content.into(), |k| k.content.clone());
            Some(Known { stamp: None, digest: 0, looks_left: 0, content })
        };
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // A dangling link is not a removed file: what it points to may be on a file system that is away.
                return match fs::symlink_metadata(path) {
                    Ok(_) => broken("is a symbolic link to a file that is not there".to_owned()),
                    Err(_) => None,
                };
            }
            Err(e) => return broken(format!("cannot be read: {e}")),
        };
        if metadata.is_dir() {
            return None;
        }
        if !metadata.is_file() {
            return broken("is not a regular file".to_owned());
        }
        if metadata.size() > FILE_MAX {
            return broken(format!("has {} bytes, at most {FILE_MAX} are read: split it", metadata.size()));
        }
        let stamp = Stamp::of(&metadata);
        let unchanged = known.filter(|k| k.stamp == Some(stamp));
        if let Some(known) = unchanged
            && known.looks_left == 0
        {
            return Some(known.clone());
        }
        let bytes = match read_at_most(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => return broken(format!("cannot be read: {e}")),
        };
        let digest = digest(&bytes);
        let content = match known {
            Some(known) if known.stamp.is_some() && known.digest == digest => Arc::clone(&known.content),
            // A parser that panics at some bytes takes no other file with it.
            _ => Arc::new(catch_unwind(|| (self.read)(&bytes)).unwrap_or_else(|_| crashed())),
        };
        let looks_left = unchanged.map_or(LOOKS_AFTER_CHANGE, |k| k.looks_left - 1);
        Some(Known { stamp: Some(stamp), digest, looks_left, content })
    }
}

fn crashed() -> Content {
    Content::unreadable(0, "the operator crashed while reading it: what it had before goes on; report it with the file")
}

/// The file name if it is one of a manifest.
fn manifest_name(name: &str) -> Option<Arc<str>> {
    let extension = Path::new(name).extension()?;
    (!name.starts_with('.') && (extension == "yaml" || extension == "yml")).then(|| name.into())
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn read_at_most(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The file may grow while it is read.
    File::open(path)?.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::other(format!("grew beyond {FILE_MAX} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: a}\nspec: {external: {url: 'http://a:1'}}\n";

    fn names(view: &View) -> Vec<&str> {
        view.files.keys().map(|name| &**name).collect()
    }

    #[test]
    fn only_yaml_files_of_the_directory_itself_are_read() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.yaml", "a.yml", ".hidden.yaml", "notes.txt", "a.yaml~", "yaml"] {
            fs::write(dir.path().join(name), GOOD).unwrap();
        }
        fs::create_dir(dir.path().join("folder.yaml")).unwrap();
        let view = Reader::new(dir.path()).look().unwrap();
        assert_eq!(names(&view), ["a.yml", "b.yaml"]);
    }

    #[test]
    fn a_file_that_crashes_its_reader_is_told_and_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), GOOD).unwrap();
        fs::write(dir.path().join("b.yaml"), "poison").unwrap();
        let read = |bytes: &[u8]| if bytes == b"poison" { panic!("as asked") } else { documents::read(bytes) };
        let mut reader = Reader { read, ..Reader::new(dir.path()) };
        let view = reader.look().unwrap();
        assert_eq!(view.files["a.yaml"].documents.len(), 1);
        assert!(view.may_hide("b.yaml"), "what it had before is not gone");
        assert!(view.problems().all(|told| told.file == "b.yaml" && told.message.contains("crashed")));
        assert_eq!(view.problems().count(), 1);
        assert!(view.is_same_as(&reader.look().unwrap()), "told once");
        fs::write(dir.path().join("b.yaml"), GOOD.replace("name: a", "name: b")).unwrap();
        assert_eq!(reader.look().unwrap().problems().count(), 0);
    }

    #[test]
    fn an_unchanged_file_keeps_its_content_and_a_changed_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, GOOD).unwrap();
        let mut reader = Reader::new(dir.path());
        let first = reader.look().unwrap();
        for _ in 0..=LOOKS_AFTER_CHANGE {
            assert!(Arc::ptr_eq(&first.files["a.yaml"], &reader.look().unwrap().files["a.yaml"]));
        }
        assert_eq!(reader.known["a.yaml"].looks_left, 0, "the file is settled");
        fs::write(&path, GOOD.replace("a:1", "a:2")).unwrap();
        assert_ne!(first.files["a.yaml"], reader.look().unwrap().files["a.yaml"]);
    }

    #[test]
    fn a_change_that_leaves_the_time_stamps_alone_is_seen_right_after_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, GOOD).unwrap();
        let mut reader = Reader::new(dir.path());
        let first = reader.look().unwrap();
        fs::write(&path, GOOD.replace("a:1", "a:2")).unwrap();
        // What a coarse clock makes of it: the reader believes that nothing changed.
        let stamp = Stamp::of(&fs::metadata(&path).unwrap());
        reader.known.get_mut("a.yaml").unwrap().stamp = Some(stamp);
        assert_ne!(first.files["a.yaml"], reader.look().unwrap().files["a.yaml"]);
    }

    #[test]
    fn what_cannot_be_read_is_a_problem_of_the_file_and_not_its_absence() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/nonexistent", dir.path().join("link.yaml")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("fifo.yaml"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        fs::write(dir.path().join("latin.yaml"), b"a: b\nc: \xe9\n").unwrap();
        File::create(dir.path().join("huge.yaml")).unwrap().set_len(FILE_MAX + 1).unwrap();
        let view = Reader::new(dir.path()).look().unwrap();
        let told: Vec<_> = view
            .files
            .iter()
            .map(|(name, content)| {
                assert!(!content.complete, "{name} is not complete");
                format!("{name}:{}: {}", content.problems[0].line, content.problems[0].message)
            })
            .collect();
        assert_eq!(
            told,
            [
                "fifo.yaml:0: is not a regular file",
                "huge.yaml:0: has 4194305 bytes, at most 4194304 are read: split it",
                "latin.yaml:2: is not UTF-8 text: save the file as UTF-8",
                "link.yaml:0: is a symbolic link to a file that is not there",
            ]
        );
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for (path, why) in [(dir.path().join("gone"), "No such file or directory"), (file, "Not a directory")] {
            let error = Reader::new(&path).look().unwrap_err();
            assert!(error.message.contains(why), "{}", error.message);
            assert!(error.message.contains(&path.display().to_string()), "{}", error.message);
        }
    }
}
