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
use rand::RngExt as _;
use rand::distr::{Alphanumeric, SampleString as _};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use sha_crypt::{PasswordHasher as _, ShaCrypt};

use super::directory::{self, CREDENTIALS, PASSWORDS, Readers};
use super::{Site, errors};
use crate::config::providers::Auth;

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
    directory::write(&folder.join(PASSWORDS), password_line(&credentials)?.as_bytes(), readers)
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
    // Letters and digits only: they need no escaping in a URL.
    let username = format!("px{}", Alphanumeric.sample_string(&mut rand::rng(), 8));
    let password = Alphanumeric.sample_string(&mut rand::rng(), 32);
    let file = CredentialsFile { username, password };
    let json = serde_json::to_vec(&file).expect("two strings always serialize");
    directory::write(&folder.join(CREDENTIALS), &json, Readers::Us)?;
    Ok(Credentials { username: file.username.into(), password: Arc::new(SecretString::from(file.password)) })
}

/// `user:hash`, as the NCSA helper reads it. SHA-crypt, which every crypt(3) of our time knows.
fn password_line(credentials: &Credentials) -> Result<String, OpError> {
    let invalid =
        |why: &str| OpError::permanent(Reason::SecretInvalid, format!("squid cannot ask for these credentials: {why}"));
    let user = &credentials.username;
    if user.is_empty() || user.contains(':') || user.starts_with(['#', ' ', '\t']) || user.contains(char::is_control) {
        return Err(invalid("the username is empty, begins with a blank or `#`, or has a colon or control character"));
    }
    let password = credentials.password.expose_secret();
    if password.is_empty() || password.contains(char::is_control) {
        return Err(invalid("the password is empty or has a control character"));
    }
    let salt: [u8; 12] = rand::rng().random();
    let hash = ShaCrypt::SHA256
        .hash_password_with_salt(password.as_bytes(), &salt)
        .map_err(|_| invalid("the password cannot be hashed"))?;
    Ok(format!("{user}:{hash}\n"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(username: &str, password: &str) -> Credentials {
        Credentials { username: username.into(), password: Arc::new(SecretString::from(password.to_owned())) }
    }

    #[test]
    fn credentials_that_would_break_the_password_file_are_refused_without_being_quoted() {
        for (user, password) in
            [("", "p"), ("a:b", "secretpw"), ("#a", "p"), (" a", "p"), ("a\nb", "p"), ("a", ""), ("a", "secret\0pw")]
        {
            let error = password_line(&credentials(user, password)).expect_err("a refusal");
            assert_eq!(error.reason, Reason::SecretInvalid, "{user:?}");
            assert!(!error.detail.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_password_line_has_a_salted_hash_and_no_password() {
        let line = password_line(&credentials("Ann", "open sesame")).expect("a line");
        assert!(line.starts_with("Ann:$5$") && line.ends_with('\n'), "{line}");
        assert!(!line.contains("sesame"));
        assert_ne!(line, password_line(&credentials("Ann", "open sesame")).expect("a line"));
    }
}
