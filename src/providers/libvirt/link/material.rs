//! The SSH material of one entry: our private key and the known hosts, from the files that its configuration names.
//!
//! Owns the last reading. Spoken to by whoever dials. The files are read again each time, so that a Secret that appears, changes or is
//! corrected counts without a restart (faults 6 to 8); they are parsed again only when their content changed.
//! Never in a log, an error or a `Debug`: anything from inside the key file.

mod key;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use russh::keys::{HashAlg, PrivateKey};
use secrecy::{ExposeSecret, SecretSlice};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::known_hosts::KnownHosts;

/// For both files. They are in memory (a mounted Secret) or on a disk; beyond this a filesystem hangs.
const LIMIT: Duration = Duration::from_secs(5);

/// The largest RSA key that ssh-keygen makes, 16384 bits, takes 13 kB.
const KEY_MAX: u64 = 64 << 10;

/// What a Secret can hold.
const KNOWN_HOSTS_MAX: u64 = 1 << 20;

/// A content, and what came of it.
type Reading = (Fingerprint, Result<Arc<Material>, OpError>);

/// Where the material of an entry is.
pub struct MaterialFiles {
    key: PathBuf,
    known_hosts: PathBuf,
    last: Mutex<Option<Reading>>,
    /// One reading at a time, held to its end even if nobody waits for it any more: a hanging filesystem holds one blocking
    /// thread for each entry.
    reading: Arc<Semaphore>,
}

impl fmt::Debug for MaterialFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaterialFiles")
            .field("key", &self.key)
            .field("known_hosts", &self.known_hosts)
            .finish_non_exhaustive()
    }
}

impl MaterialFiles {
    pub fn new(key: PathBuf, known_hosts: PathBuf) -> Self {
        Self { key, known_hosts, last: Mutex::default(), reading: Arc::new(Semaphore::new(1)) }
    }

    /// What the files hold now. Takes 5 s at most.
    ///
    /// # Errors
    /// Transient: `SSHMaterialMissing` if a file is not there or cannot be opened, `Timeout` if it cannot be read in time.
    /// Permanent until the files change: `SSHKeyInvalid`, `SSHKeyEncrypted`, and `SSHMaterialMissing` for known hosts beyond 1 MiB.
    pub async fn read(&self) -> Result<Arc<Material>, OpError> {
        let (key, known_hosts) = timeout(LIMIT, self.contents()).await.map_err(|_| self.late())??;
        let fingerprint = Fingerprint::of(key.expose_secret(), &known_hosts);
        // Parsed outside the lock; two at once parse the same.
        if let Some((of, result)) = &*self.last.lock().unwrap_or_else(PoisonError::into_inner)
            && *of == fingerprint
        {
            return result.clone();
        }
        let result = Material::parse(fingerprint, &self.key, &key, &known_hosts).map(Arc::new);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((fingerprint, result.clone()));
        result
    }

    async fn contents(&self) -> Result<(SecretSlice<u8>, Vec<u8>), OpError> {
        let permit = Arc::clone(&self.reading).acquire_owned().await.map_err(|_| self.late())?;
        let (key, known_hosts) = (self.key.clone(), self.known_hosts.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let _held_to_the_end = permit;
            let key = content(&key, KEY_MAX)
                .map_err(|error| unreadable("the SSH key", &key, Reason::SSHKeyInvalid, &error))?;
            let told = |error: &_| unreadable("known_hosts", &known_hosts, Reason::SSHMaterialMissing, error);
            Ok((SecretSlice::from(key), content(&known_hosts, KNOWN_HOSTS_MAX).map_err(|error| told(&error))?))
        });
        reading
            .await
            .unwrap_or_else(|_| Err(OpError::transient(Reason::Internal, "reading the SSH material was cut short")))
    }

    fn late(&self) -> OpError {
        let detail = format!(
            "cannot read {} and {} within {} s: the filesystem does not answer",
            self.key.display(),
            self.known_hosts.display(),
            LIMIT.as_secs()
        );
        OpError::transient(Reason::Timeout, detail)
    }
}

enum Unread {
    Io(io::Error),
    NoFile,
    TooLarge(u64),
}

fn content(path: &Path, max: u64) -> Result<Vec<u8>, Unread> {
    // A pipe in the file's place must not hold the thread.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(Unread::Io)?;
    if !file.metadata().map_err(Unread::Io)?.is_file() {
        return Err(Unread::NoFile);
    }
    // All the room at once: a buffer that grows leaves copies of the key behind.
    let room = usize::try_from(max.min(KEY_MAX) + 1).unwrap_or_default();
    let mut bytes = Vec::with_capacity(room);
    file.take(max + 1).read_to_end(&mut bytes).map_err(Unread::Io)?;
    if bytes.len() as u64 > max { Err(Unread::TooLarge(max)) } else { Ok(bytes) }
}

fn unreadable(what: &str, path: &Path, too_large: Reason, error: &Unread) -> OpError {
    let path = path.display();
    let missing = |why: &str| {
        let detail = format!("{what} {path} {why}; is the Secret made, and mounted there?");
        OpError::transient(Reason::SSHMaterialMissing, detail)
    };
    match error {
        Unread::Io(error) if error.kind() == io::ErrorKind::NotFound => missing("is not there"),
        Unread::Io(error) => missing(&format!("cannot be read: {}", error.kind())),
        Unread::NoFile => missing("is not a file"),
        Unread::TooLarge(max) => {
            OpError::permanent(too_large, format!("{what} {path} is larger than {} KiB", max >> 10))
        }
    }
}

/// Which content of the two files this is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    fn of(key: &[u8], known_hosts: &[u8]) -> Self {
        let mut hash = Sha256::new();
        hash.update((key.len() as u64).to_be_bytes());
        hash.update(key);
        hash.update(known_hosts);
        Self(hash.finalize().into())
    }
}

impl fmt::Debug for Fingerprint {
    /// A part of it: a whole hash of a secret is a way to test guesses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:02x}{:02x})", self.0[0], self.0[1])
    }
}

/// What is needed to dial a host: who we are, and who they are.
pub struct Material {
    key: Arc<PrivateKey>,
    known: KnownHosts,
    problems: Vec<String>,
    fingerprint: Fingerprint,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Material")
            .field("key", &self.public())
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl Material {
    fn parse(
        fingerprint: Fingerprint,
        path: &Path,
        key: &SecretSlice<u8>,
        known_hosts: &[u8],
    ) -> Result<Self, OpError> {
        let key = key::parse(key.expose_secret()).map_err(|error| error.told(path))?;
        // A line that is no text is a line of no use, and not the end of the others.
        let (known, problems) = KnownHosts::parse(&String::from_utf8_lossy(known_hosts));
        Ok(Self { key: Arc::new(key), known, problems, fingerprint })
    }

    pub fn key(&self) -> &Arc<PrivateKey> {
        &self.key
    }

    pub fn known(&self) -> &KnownHosts {
        &self.known
    }

    /// The lines of `known_hosts` that are of no use, for a log line or a check's words; not fatal (fault 6).
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Changes exactly if the content of a file does.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The public half, as `ssh-keygen -l` tells it: `ssh-ed25519 SHA256:…`.
    pub fn public(&self) -> String {
        format!("{} {}", self.key.algorithm(), self.key.fingerprint(HashAlg::Sha256))
    }
}
