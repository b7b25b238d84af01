//! User names and passwords for instances, and the line by which Squid's helper knows them.
//!
//! Pure but for randomness. Never puts a password into a message or a `Debug`; the line has a hash only.

use std::sync::Arc;

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::Credentials;
use egress_actors::domain::reason::Reason;
use rand::RngExt as _;
use rand::distr::{Alphanumeric, SampleString as _};
use secrecy::{ExposeSecret as _, SecretString};
use sha_crypt::{PasswordHasher as _, ShaCrypt};

/// New ones, hard to guess.
pub fn generate() -> Credentials {
    // Letters and digits only: they need no escaping in a URL.
    let username = format!("px{}", Alphanumeric.sample_string(&mut rand::rng(), 8));
    let password = Alphanumeric.sample_string(&mut rand::rng(), 32);
    Credentials { username: username.into(), password: Arc::new(SecretString::from(password)) }
}

/// `user:hash`, as the NCSA helper reads it. SHA-crypt, which every crypt(3) of our time knows.
pub fn line(credentials: &Credentials) -> Result<String, OpError> {
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
            let error = line(&credentials(user, password)).expect_err("a refusal");
            assert_eq!(error.reason, Reason::SecretInvalid, "{user:?}");
            assert!(!error.detail.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_password_line_has_a_salted_hash_and_no_password() {
        let first = line(&credentials("Ann", "open sesame")).expect("a line");
        assert!(first.starts_with("Ann:$5$") && first.ends_with('\n'), "{first}");
        assert!(!first.contains("sesame"));
        assert_ne!(first, line(&credentials("Ann", "open sesame")).expect("a line"));
    }
}
