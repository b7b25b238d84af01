//! What standalone mode remembers: `<state-dir>/standalone.redb`, and the lock on the state directory.
//!
//! One JSON record for each object, in two tables, so that a status does not rewrite a spec. Every commit is durable
//! when it returns: a finalizer or a host that is forgotten is an instance that nobody deletes. The cost of that is an
//! fsync for each commit, hence [`Store::commit`] takes a batch. Owned and called by the keeper's thread only, as all
//! of it blocks on the disk.
//!
//! The lock is an flock on a file of its own: it is taken before anything else is touched, it names the holder, and the
//! kernel drops it with the process, also after a kill -9.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use egress_actors::domain::id::{OperatorId, ProxyKey};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::StandaloneError;
use crate::crd::proxy::{ProxySpec, ProxyStatus};

const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const OBJECTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("objects");
const STATUSES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("statuses");

/// The format of the records. A change that an older operator would misread gets a new number.
const FORMAT: &str = "1";

/// The whole fleet is in memory anyway: the cache only serves the pages of one commit. redb's default is 1 GiB.
const CACHE_BYTES: usize = 4 * 1024 * 1024;

/// One object as stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// Given at first sight; a recreated name has another one.
    pub(super) uid: String,
    /// Grows with each change of `spec`.
    pub(super) generation: i64,
    /// As accepted last.
    pub(super) spec: ProxySpec,
    /// Ours, as the manifest has them.
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    /// The drain annotation as set over HTTP; it holds until the manifest says something new about draining.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) drain: Option<bool>,
    /// The host chosen for the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<String>,
    #[serde(default)]
    pub(super) finalizer: bool,
    /// When the manifest was gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) deleted_at: Option<Time>,
    /// Its manifest is gone together with most of the fleet's: it is kept until a person decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) held: bool,
    /// The name of the file that the spec comes from.
    pub(super) origin: String,
}

/// A row that is to be written: both parts, or none to delete it.
pub(super) type Row<'a> = (&'a ProxyKey, Option<(&'a Record, Option<&'a ProxyStatus>)>);

/// All rows as read at the start.
pub(super) type Rows = BTreeMap<ProxyKey, (Record, Option<ProxyStatus>)>;

/// Who this operator is, and how often it was started on this state: the upper half of its fencing numbers.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) operator: OperatorId,
    pub(super) starts: u32,
}

/// The open store, and the lock on its directory.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// `None` after an I/O error: redb refuses everything then, and the next commit opens it anew.
    database: Option<Database>,
    _lock: File,
}

impl Store {
    /// Takes the lock, opens or makes the store, and reads all of it.
    pub(super) fn open(state_dir: &Path) -> Result<(Self, Identity, Rows), StandaloneError> {
        // Others may pass, not look: a Squid that drops root reads its own configuration below. Files here are 0600.
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(state_dir)
            .map_err(|source| StandaloneError::StateDir { dir: state_dir.to_owned(), source })?;
        let lock = lock(state_dir)?;
        let path = state_dir.join("standalone.redb");
        let database = open_database(&path)?;
        let broken = |detail: String| StandaloneError::Corrupt { file: path.clone(), detail };
        // A damaged file can make redb fail anywhere; whatever it does, the operator says which file it is.
        let read = catch_unwind(AssertUnwindSafe(|| read_all(&database, &path)));
        let (identity, rows) = read.unwrap_or_else(|_| Err(broken("reading it failed".to_owned())))?;
        Ok((Self { path, database: Some(database), _lock: lock }, identity, rows))
    }

    /// Writes all rows, or none.
    pub(super) fn commit<'a>(&mut self, rows: impl Iterator<Item = Row<'a>>) -> Result<(), String> {
        let database = match self.database.take() {
            Some(database) => database,
            None => open_database(&self.path).map_err(|e| e.to_string())?,
        };
        write(&database, rows).map_err(|e| format!("store `{}`: {e}", self.path.display()))?;
        self.database = Some(database);
        Ok(())
    }
}

fn lock(state_dir: &Path) -> Result<File, StandaloneError> {
    let failed = |source| StandaloneError::StateDir { dir: state_dir.to_owned(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(state_dir.join("lock"))
        .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            let _ = (&mut file).take(20).read_to_string(&mut holder);
            return Err(StandaloneError::InUse { dir: state_dir.to_owned(), holder: holder.trim().to_owned() });
        }
        Err(e) => return Err(failed(e.into())),
    }
    // Only for the message above; the lock itself is the kernel's.
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
    Ok(file)
}

fn open_database(path: &Path) -> Result<Database, StandaloneError> {
    let broken = |detail: String| StandaloneError::Corrupt { file: path.to_owned(), detail };
    // Specs may hold user data: the file is for us alone.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| StandaloneError::Store { file: path.to_owned(), source })?;
    let opened = catch_unwind(AssertUnwindSafe(|| {
        Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(FileBackend::new(file)?)
    }));
    match opened {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(redb::DatabaseError::DatabaseAlreadyOpen)) => {
            Err(StandaloneError::InUse { dir: path.parent().unwrap_or(path).to_owned(), holder: String::new() })
        }
        Ok(Err(e)) => Err(broken(e.to_string())),
        Err(_) => Err(broken("opening it failed".to_owned())),
    }
}

fn read_all(database: &Database, path: &Path) -> Result<(Identity, Rows), StandaloneError> {
    let broken = |detail: String| StandaloneError::Corrupt { file: path.to_owned(), detail };
    let failed = |e: redb::Error| StandaloneError::Corrupt { file: path.to_owned(), detail: e.to_string() };
    let prepared = prepare(database).map_err(failed)?;
    let identity = match prepared {
        Ok((operator, starts)) => {
            Identity { operator: OperatorId::parse(&operator).map_err(|e| broken(e.to_string()))?, starts }
        }
        Err(found) => return Err(StandaloneError::Format { file: path.to_owned(), found }),
    };
    let raw = read_rows(database).map_err(failed)?;
    let mut rows = Rows::new();
    for (key, record, status) in raw {
        let bad = |e: &dyn std::fmt::Display| broken(format!("the record of `{key}` cannot be read: {e}"));
        let parsed = ProxyKey::parse(&key).map_err(|e| bad(&e))?;
        let record = serde_json::from_slice(&record).map_err(|e| bad(&e))?;
        // A status is only a memory: without it the Proxy starts as if it were new.
        let status = status.and_then(|status| serde_json::from_slice(&status).ok());
        rows.insert(parsed, (record, status));
    }
    Ok((identity, rows))
}

/// Makes the tables at first use and counts this start; the operator id, or the format found if it is not ours.
fn prepare(database: &Database) -> Result<Result<(String, u32), String>, redb::Error> {
    let transaction = database.begin_write()?;
    let identity = {
        let mut meta = transaction.open_table(META)?;
        let found = meta.get("format")?.map(|value| value.value().to_owned());
        match found.as_deref() {
            None => drop(meta.insert("format", FORMAT)?),
            Some(FORMAT) => {}
            Some(other) => return Ok(Err(other.to_owned())),
        }
        let known = meta.get("operator-id")?.map(|value| value.value().to_owned());
        let operator = if let Some(operator) = known {
            operator
        } else {
            let operator = uuid::Uuid::new_v4().to_string();
            meta.insert("operator-id", operator.as_str())?;
            operator
        };
        let starts = meta.get("starts")?.and_then(|value| value.value().parse::<u32>().ok()).unwrap_or(0) + 1;
        meta.insert("starts", starts.to_string().as_str())?;
        (operator, starts)
    };
    transaction.open_table(OBJECTS)?;
    transaction.open_table(STATUSES)?;
    transaction.commit()?;
    Ok(Ok(identity))
}

type RawRow = (String, Vec<u8>, Option<Vec<u8>>);

fn read_rows(database: &Database) -> Result<Vec<RawRow>, redb::Error> {
    let transaction = database.begin_read()?;
    let objects = transaction.open_table(OBJECTS)?;
    let statuses = transaction.open_table(STATUSES)?;
    let mut rows = Vec::new();
    for row in objects.iter()? {
        let (key, record) = row?;
        let status = statuses.get(key.value())?.map(|status| status.value().to_vec());
        rows.push((key.value().to_owned(), record.value().to_vec(), status));
    }
    Ok(rows)
}

fn write<'a>(database: &Database, rows: impl Iterator<Item = Row<'a>>) -> Result<(), redb::Error> {
    let json = |e: serde_json::Error| redb::Error::Corrupted(e.to_string());
    let transaction = database.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        let mut statuses = transaction.open_table(STATUSES)?;
        for (key, row) in rows {
            let Some((record, status)) = row else {
                objects.remove(key.as_str())?;
                statuses.remove(key.as_str())?;
                continue;
            };
            let bytes = serde_json::to_vec(record).map_err(json)?;
            let same = objects.get(key.as_str())?.is_some_and(|old| old.value() == bytes);
            if !same {
                objects.insert(key.as_str(), bytes.as_slice())?;
            }
            if let Some(status) = status {
                let bytes = serde_json::to_vec(status).map_err(json)?;
                statuses.insert(key.as_str(), bytes.as_slice())?;
            } else {
                statuses.remove(key.as_str())?;
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn record() -> Record {
        Record {
            uid: "u-1".into(),
            generation: 2,
            spec: serde_json::from_value(serde_json::json!({"external": {"url": "http://a:1"}, "maxLeases": 3}))
                .unwrap(),
            annotations: BTreeMap::from([("crawl.example.com/drain".to_owned(), "true".to_owned())]),
            drain: Some(false),
            host: Some("local".into()),
            finalizer: true,
            deleted_at: Some(Time("2026-12-01T00:00:00Z".parse().unwrap())),
            held: true,
            origin: "a.yaml".into(),
        }
    }

    fn key(name: &str) -> ProxyKey {
        ProxyKey::new("crawl", name).unwrap()
    }

    #[test]
    fn what_was_committed_is_there_after_a_reopening_and_the_operator_id_stays() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/on/the/way");
        let (mut store, first, rows) = Store::open(&state).unwrap();
        assert!(rows.is_empty());
        let status = ProxyStatus { phase: Some("Ready".into()), ..ProxyStatus::default() };
        let (a, b) = (key("a"), key("b"));
        store.commit([(&a, Some((&record(), Some(&status)))), (&b, Some((&record(), None)))].into_iter()).unwrap();
        store.commit([(&b, None)].into_iter()).unwrap();
        drop(store);
        let (_, again, rows) = Store::open(&state).unwrap();
        assert_eq!(first.operator, again.operator);
        assert_eq!((first.starts, again.starts), (1, 2));
        assert_eq!(rows.into_iter().collect::<Vec<_>>(), [(a, (record(), Some(status)))]);
    }

    #[test]
    fn a_second_operator_on_one_state_dir_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let (store, ..) = Store::open(dir.path()).unwrap();
        let error = Store::open(dir.path()).unwrap_err().to_string();
        let (shown, pid) = (dir.path().display(), std::process::id());
        assert_eq!(
            error,
            format!(
                "state directory `{shown}` is in use by another operator (process {pid}): stop that one, or give this one its own --state-dir"
            )
        );
        drop(store);
        Store::open(dir.path()).unwrap();
    }

    #[test]
    fn a_damaged_store_is_named_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path()).unwrap());
        let path = dir.path().join("standalone.redb");
        let good = fs::read(&path).unwrap();
        let mut flipped = good.clone();
        flipped[8..320].fill(0xa5);
        for bytes in [b"this is no store".to_vec(), flipped, good[..good.len() / 2].to_vec()] {
            fs::write(&path, bytes).unwrap();
            let error = Store::open(dir.path()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("store `{}` cannot be read: ", path.display())), "{error}");
            assert!(error.ends_with("delete those by hand)"), "{error}");
        }
    }

    #[test]
    fn a_store_of_another_format_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path()).unwrap());
        let database = Database::create(dir.path().join("standalone.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert("format", "9").unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = Store::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("has format 9, and this operator reads format 1"), "{error}");
    }

    #[test]
    fn a_record_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path()).unwrap());
        let database = Database::create(dir.path().join("standalone.redb")).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(OBJECTS).unwrap().insert("crawl/a", b"{}".as_slice()).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = Store::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("the record of `crawl/a` cannot be read: missing field `uid`"), "{error}");
    }

    #[test]
    fn files_are_for_us_alone() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let _store = Store::open(&state).unwrap();
        assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o711);
        assert_eq!(fs::metadata(state.join("standalone.redb")).unwrap().mode() & 0o777, 0o600);
    }
}
