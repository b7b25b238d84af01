//! The folder of an instance: its layout, how it appears and goes at once, and how its files are written.
//!
//! A folder with the name of a uid always holds the owner mark: it is built under another name and renamed. What has a
//! uid's name and no mark was not made by us. Names with a leading dot are ours, half made or half removed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{ProviderName, Uid};
use egress_actors::domain::instance::OwnerMark;
use egress_actors::domain::reason::Reason;

use super::mark::OwnerFile;
use super::{Site, all_bases, errors, evidence};

pub(super) const OWNER: &str = "owner.json";
pub(super) const CONF: &str = "squid.conf";
/// Which process runs on the configuration: a shortcut for looks, never evidence by itself.
pub(super) const RECORD: &str = "process.json";
/// The generated user and password, for us only.
pub(super) const CREDENTIALS: &str = "credentials.json";
/// The same as a hash, for Squid's helper; given credentials are kept in this form only.
pub(super) const PASSWORDS: &str = "passwords";
pub(super) const CACHE_LOG: &str = "cache.log";
/// Standard output and error of the child.
pub(super) const OUTPUT: &str = "squid.out";

/// Squid cannot bound its log, so each listing does; a quarter of an hour of Squid's worst talk fits.
const LOG_MAX: u64 = 1024 * 1024;

/// Where Linux keeps POSIX shared memory, as files.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";

/// In the directory of each entry: tells it from an empty one in its place, as where nothing is mounted.
pub(super) const HERE: &str = ".entry";

const NEW: &str = ".new-";
const GONE: &str = ".gone-";

/// Who may enter a folder: Squid's user must get through to the files that are for it, and no list is for others.
const FOLDER_MODE: u32 = 0o711;

pub(super) enum Folder {
    Absent,
    Ours(OwnerFile),
}

/// That the state directory is there and can be used. Without it nothing is known about any instance.
pub(super) fn state_dir(site: &Site) -> Result<(), OpError> {
    let path = &site.state_dir;
    let found = fs::metadata(path).map_err(|e| errors::file("read the state directory", path, &e))?;
    if !found.is_dir() {
        let detail = format!("the state directory `{}` is not a directory", path.display());
        return Err(OpError::transient(Reason::StorageNotFound, detail));
    }
    Ok(())
}

/// That Squid can read the paths that we would write for it. Asked before anything is made there.
pub(super) fn path_is_plain(site: &Site) -> Result<(), OpError> {
    let plain = |c: char| !(c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'' | '#' | '\\' | '%'));
    if site.state_dir.to_str().is_some_and(|text| text.chars().all(plain)) {
        return Ok(());
    }
    let detail = format!(
        "squid cannot read paths with blanks or quotes, as in `{}`: choose another --state-dir",
        site.state_dir.display()
    );
    Err(OpError::permanent(Reason::ConfigInvalid, detail))
}

/// Whether the entry's directory is the one in which its instances were made.
pub(super) fn is_here(site: &Site) -> Result<bool, OpError> {
    let here = site.base.join(HERE);
    if here.try_exists().map_err(|e| errors::file("read", &here, &e))? {
        return Ok(true);
    }
    // Made by an older version, until the next list.
    Ok(folders(site)?.iter().any(|uid| site.folder(uid).join(OWNER).exists()))
}

/// That a folder which is not there is gone. Where another directory is in the place of the entry's, or none, under
/// Squids that run on configurations in it, it says nothing.
pub(super) fn absence_counts(site: &Site) -> Result<(), OpError> {
    if is_here(site)? {
        return Ok(());
    }
    let running = evidence::all(site)?.len();
    // Looked at again: the first create of all may have been in between.
    if running == 0 || is_here(site)? { Ok(()) } else { Err(is_away(site, running)) }
}

pub(super) fn is_away(site: &Site, running: usize) -> OpError {
    let base = site.base.display();
    let detail = format!(
        "`{base}` is empty and {running} squids run on configurations in it: is it mounted? if it was removed, end them: \
         `pgrep -f {base}/`"
    );
    OpError::transient(Reason::StorageNotFound, detail)
}

/// Leaves the sign by which the entry's directory is known.
pub(super) fn sign(base: &Path) -> Result<(), OpError> {
    let here = base.join(HERE);
    if here.exists() {
        return Ok(());
    }
    write(
        &here,
        b"the directory of an entry of egress-proxies-operator: without this file it counts as not mounted\n",
        Readers::All,
    )
}

/// The folder that `mark` names, if it is ours. Somebody else's is a conflict.
pub(super) fn read(site: &Site, mark: &OwnerMark) -> Result<Folder, OpError> {
    state_dir(site)?;
    let folder = site.folder(&mark.uid);
    match fs::symlink_metadata(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            absence_counts(site)?;
            return Ok(Folder::Absent);
        }
        Err(error) => return Err(errors::file("read", &folder, &error)),
        Ok(found) if !found.is_dir() => {
            return Err(errors::conflict(format!("`{}` is in the way and not a folder", folder.display())));
        }
        Ok(_) => {}
    }
    match OwnerFile::read(&folder.join(OWNER))? {
        Some(owner) if owner.mark() == *mark => Ok(Folder::Ours(owner)),
        Some(owner) => {
            let other = owner.mark();
            let detail = format!(
                "`{}` belongs to {} of entry `{}` and operator `{}`",
                folder.display(),
                other.key,
                other.entry,
                other.operator
            );
            Err(errors::conflict(detail))
        }
        None if is_empty(&folder)? => Ok(Folder::Absent),
        None => Err(errors::conflict(format!("`{}` has no owner mark: it is not ours", folder.display()))),
    }
}

fn is_empty(folder: &Path) -> Result<bool, OpError> {
    let mut entries = fs::read_dir(folder).map_err(|e| errors::file("read", folder, &e))?;
    Ok(entries.next().is_none())
}

/// Every entry that ever had instances here, and this one.
pub(super) fn entries(site: &Site) -> Result<Vec<ProviderName>, OpError> {
    state_dir(site)?;
    let all = all_bases(&site.state_dir);
    let mut entries = vec![site.entry.name.clone()];
    let found = match fs::read_dir(&all) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(entries),
        Err(error) => return Err(errors::file("list", &all, &error)),
    };
    for entry in found {
        let entry = entry.map_err(|e| errors::file("list", &all, &e))?;
        // What has another name, or is a file, was not made by us. A link may lead to the disk of an entry.
        let is_file = fs::metadata(entry.path()).is_ok_and(|found| !found.is_dir());
        let name = entry.file_name().to_str().and_then(|name| ProviderName::parse(name).ok());
        entries.extend(name.filter(|name| !is_file && *name != site.entry.name));
    }
    Ok(entries)
}

/// Uids of all folders that could be instances: those in the base directory that have a uid's name.
pub(super) fn folders(site: &Site) -> Result<Vec<Uid>, OpError> {
    state_dir(site)?;
    let entries = match fs::read_dir(&site.base) {
        Ok(entries) => entries,
        // The state directory is there, so this entry has made nothing yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(errors::file("list", &site.base, &error)),
    };
    let mut uids = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| errors::file("list", &site.base, &e))?;
        // Where the kind cannot be told it may be one.
        if entry.file_type().is_ok_and(|kind| !kind.is_dir()) {
            continue;
        }
        uids.extend(entry.file_name().to_str().and_then(|name| Uid::parse(name).ok()));
    }
    Ok(uids)
}

/// A new folder with the mark in it; `fill` adds what belongs in it. It appears complete, or not at all.
pub(super) fn make(
    site: &Site,
    owner: &OwnerFile,
    fill: impl FnOnce(&Path) -> Result<(), OpError>,
) -> Result<(), OpError> {
    let uid = owner.mark().uid;
    let new = site.base.join(format!("{NEW}{uid}"));
    remove(&new)?;
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(&site.base)
        .map_err(|e| errors::file("make", &site.base, &e))?;
    sign(&site.base)?;
    DirBuilder::new().mode(FOLDER_MODE).create(&new).map_err(|e| errors::file("make", &new, &e))?;
    fill(&new)?;
    write(&new.join(OWNER), owner.to_json().as_bytes(), Readers::All)?;
    let folder = site.folder(&uid);
    // Onto a folder that is not empty this fails: what came in between is not replaced.
    fs::rename(&new, &folder).map_err(|e| match e.kind() {
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            errors::conflict(format!("`{}` appeared and is not ours", folder.display()))
        }
        _ => errors::file("make", &folder, &e),
    })?;
    sync(&site.base)
}

/// Takes the folder away: at once for every reader, then for good. The caller has read the mark and seen the end of
/// the process.
pub(super) fn retire(site: &Site, uid: &Uid) -> Result<(), OpError> {
    let gone = site.base.join(format!("{GONE}{uid}"));
    remove(&gone)?;
    // What an operator that was killed left half made, with a password in it.
    remove(&site.base.join(format!("{NEW}{uid}")))?;
    let folder = site.folder(uid);
    match fs::rename(&folder, &gone) {
        Ok(()) => {
            sync(&site.base)?;
            remove(&gone)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(errors::file("remove", &folder, &error)),
    }
    remove_shared_memory(&evidence::service_name(uid))
}

/// What a Squid that was killed leaves of its shared memory.
fn remove_shared_memory(service: &str) -> Result<(), OpError> {
    // Where there is none, nothing was left in it.
    let Ok(entries) = fs::read_dir(SHARED_MEMORY) else { return Ok(()) };
    let prefix = format!("{service}-");
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes what an operator that was killed left half made or half removed. Only while choosing: nobody else is at it.
pub(super) fn sweep(site: &Site) -> Result<(), OpError> {
    let entries = match fs::read_dir(&site.base) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(errors::file("list", &site.base, &error)),
    };
    for entry in entries {
        let entry = entry.map_err(|e| errors::file("list", &site.base, &e))?;
        let ours = |name: &str| name.starts_with(NEW) || name.starts_with(GONE);
        if entry.file_name().to_str().is_some_and(ours) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Cuts logs that have grown past their bound. Squid appends, so it goes on at the new end.
pub(super) fn bound_logs(folder: &Path) -> Result<(), OpError> {
    for log in [CACHE_LOG, OUTPUT] {
        let path = folder.join(log);
        if fs::metadata(&path).is_ok_and(|found| found.len() > LOG_MAX) {
            OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(0))
                .map_err(|e| errors::file("cut", &path, &e))?;
        }
    }
    Ok(())
}

/// Who may read a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Readers {
    All,
    /// Nobody but us.
    Us,
    /// We and this group.
    Group(u32),
}

/// Replaces a file at once: a reader sees the old or the new one, and sees that it is another one.
pub(super) fn write(path: &Path, bytes: &[u8], readers: Readers) -> Result<(), OpError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mode = match readers {
        Readers::All => 0o644,
        Readers::Us => 0o600,
        Readers::Group(_) => 0o640,
    };
    let written = || -> io::Result<()> {
        // Made anew, so that an old one neither lends its mode nor keeps its reader.
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        if let Readers::Group(group) = readers {
            fchown(&file, None, Some(group))?;
        }
        file.write_all(bytes)?;
        // Squid's helper tells files apart by their time in whole seconds.
        let second = |time: SystemTime| time.duration_since(UNIX_EPOCH).map(|since| since.as_secs()).ok();
        let old = fs::metadata(path).and_then(|old| old.modified()).ok();
        if let Some(old) = old.filter(|&old| second(old) == second(SystemTime::now())) {
            file.set_modified(old + Duration::from_secs(1))?;
        }
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    written().map_err(|e| errors::file("write", path, &e))
}

pub(super) fn remove_file(path: &Path) -> Result<(), OpError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(errors::file("remove", path, &error)),
        _ => Ok(()),
    }
}

fn remove(folder: &Path) -> Result<(), OpError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(errors::file("remove", folder, &error)),
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> Result<(), OpError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| errors::file("write", folder, &e))
}
