//! Who may use an instance: its credentials as files, Squid's helper, and the user that Squid becomes.
//!
//! Never puts a password into an argument, a message or a `Debug`. Given credentials are kept as a hash only.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::Credentials;
use egress_actors::domain::reason::Reason;
use nix::unistd::User;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::directory::{self, CREDENTIALS, PASSWORDS, Readers};
use super::{Site, errors};
use crate::config::providers::Auth;
use crate::providers::passwords;

/// What an instance shall ask of its clients.
pub(super) enum Wanted {
    Nothing,
    Generated,
    Given(Credentials),
}

impl Wanted {
    /// Credentials of the Proxy's own Secret win over generated ones.
    pub(super) fn of(site: &Site, given: Option<&Credentials>) -> Self {
        match (given, site.entry.auth) {
            (Some(given), _) => Self::Given(given.clone()),
            (None, Auth::Generated) => Self::Generated,
            (None, Auth::None) => Self::Nothing,
        }
    }

    pub(super) fn is_some(&self) -> bool {
        !matches!(self, Self::Nothing)
    }
}

#[derive(Serialize, Deserialize)]
struct CredentialsFile {
    username: String,
    password: String,
}

/// Writes what the helper and we need into `folder`. Generated credentials that are there already stay.
pub(super) fn write(folder: &Path, wanted: &Wanted) -> Result<(), OpError> {
    let credentials = match wanted {
        Wanted::Nothing => {
            directory::remove_file(&folder.join(PASSWORDS))?;
            return directory::remove_file(&folder.join(CREDENTIALS));
        }
        Wanted::Given(given) => {
            directory::remove_file(&folder.join(CREDENTIALS))?;
            given.clone()
        }
        Wanted::Generated => match generated(folder)? {
            Some(kept) => kept,
            None => generate(folder)?,
        },
    };
    // The helper runs as Squid's user.
    let readers = squid_user().map_or(Readers::Us, |user| Readers::Group(user.gid.as_raw()));
    directory::write(&folder.join(PASSWORDS), passwords::line(&credentials)?.as_bytes(), readers)
}

/// The generated credentials in `folder`.
pub(super) fn generated(folder: &Path) -> Result<Option<Credentials>, OpError> {
    let path = folder.join(CREDENTIALS);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(errors::file("read", &path, &error)),
    };
    // The parser's message could quote the text, so it is not passed on.
    let file: CredentialsFile = serde_json::from_slice(&bytes).map_err(|_| {
        OpError::transient(Reason::Internal, format!("`{}` is damaged: remove it to get new ones", path.display()))
    })?;
    Ok(Some(Credentials { username: file.username.into(), password: Arc::new(SecretString::from(file.password)) }))
}

fn generate(folder: &Path) -> Result<Credentials, OpError> {
    let made = passwords::generate();
    let password = made.password.expose_secret().to_owned();
    let file = CredentialsFile { username: made.username.to_string(), password };
    let json = serde_json::to_vec(&file).expect("two strings always serialize");
    directory::write(&folder.join(CREDENTIALS), &json, Readers::Us)?;
    Ok(made)
}

/// Squid's NCSA helper, which the same package installs.
pub(super) fn helper(binary: &Path) -> Result<PathBuf, OpError> {
    const NAME: &str = "basic_ncsa_auth";
    // Beside the binary's own prefix first, for builds that live elsewhere.
    let prefix = binary.parent().and_then(Path::parent).unwrap_or(Path::new("/usr"));
    let places = [prefix, Path::new("/usr"), Path::new("/usr/local")];
    let folders = ["lib/squid", "lib64/squid", "libexec/squid", "libexec", "lib/squid3"];
    let known = places.iter().flat_map(|place| folders.iter().map(|folder| place.join(folder).join(NAME)));
    known.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let detail = format!(
            "squid's helper `{NAME}` is not in `{}` nor where distributions put it: install the whole package `squid`, or set `auth: none`",
            prefix.join(folders[0]).display()
        );
        OpError::permanent(Reason::BinaryMissing, detail)
    })
}

/// Whom Squid shall become when we are root, which it refuses to stay. `None` if it runs as who we are.
pub(super) fn squid_user() -> Option<User> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    ["proxy", "squid", "nobody"].into_iter().find_map(|name| User::from_name(name).ok().flatten())
}

/// The helper that a configuration for what lies in `folder` would name now; none if nothing is asked for.
pub(super) fn in_use(site: &Site, folder: &Path) -> Result<Option<PathBuf>, OpError> {
    // Given credentials, of the Proxy's own Secret, leave the hash only.
    let given = folder.join(PASSWORDS).exists() && !folder.join(CREDENTIALS).exists();
    let asks = given || site.entry.auth == Auth::Generated;
    asks.then(|| helper(&site.entry.binary)).transpose()
}

/// The helper reads its file as Squid's user, through every folder above it.
pub(super) fn helper_can_enter(folder: &Path) -> Result<(), OpError> {
    let Some(user) = squid_user() else { return Ok(()) };
    for above in folder.ancestors() {
        let Ok(found) = fs::metadata(above) else { continue };
        let mode = found.mode();
        let enters = if found.uid() == user.uid.as_raw() {
            mode & 0o100 != 0
        } else if found.gid() == user.gid.as_raw() {
            mode & 0o010 != 0
        } else {
            mode & 0o001 != 0
        };
        if !enters {
            let detail = format!(
                "`{}` is closed to user `{}`, which squid becomes: `chmod o+x` it, or choose another --state-dir",
                above.display(),
                user.name
            );
            return Err(OpError::permanent(Reason::Forbidden, detail));
        }
    }
    Ok(())
}
