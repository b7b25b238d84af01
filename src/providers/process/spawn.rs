//! Starts a Squid in a session of its own, on a configuration written for it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::Uid;
use egress_actors::domain::reason::Reason;
use process_wrap::std::{CommandWrap, ProcessSession};

use super::auth::{self, Wanted};
use super::directory::{self, CACHE_LOG, CONF, OUTPUT, PASSWORDS, RECORD, Readers};
use super::evidence::{self, Child};
use super::mark::OwnerFile;
use super::{Site, errors};
use crate::providers::squid_conf::{BasicAuth, SquidConf};

/// What a start needs of the installation, looked for before anything is made.
pub(super) fn installed(site: &Site, wanted: &Wanted) -> Result<(), OpError> {
    directory::path_is_plain(site)?;
    let binary = &site.entry.binary;
    match std::fs::metadata(binary) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(errors::binary_missing(binary, "is not a file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(errors::binary_missing(binary, "does not exist"));
        }
        Err(error) => return Err(errors::file("read", binary, &error)),
    }
    if wanted.is_some() {
        auth::helper(binary)?;
        auth::helper_can_enter(&site.state_dir)?;
    }
    Ok(())
}

/// Writes the configuration for the mark's port into its folder and starts a Squid on it.
pub(super) fn start(site: &Site, owner: &OwnerFile, wanted: &Wanted) -> Result<(), OpError> {
    let mark = owner.mark();
    let folder = site.folder(&mark.uid);
    directory::remove_file(&folder.join(RECORD))?;
    let helper = if wanted.is_some() { Some(auth::helper(&site.entry.binary)?) } else { None };
    let conf = configuration(site, owner, helper.as_deref());
    directory::write(&folder.join(CONF), conf.as_bytes(), Readers::All)?;

    let log = folder.join(CACHE_LOG);
    log_file(&log).map_err(|e| errors::file("write", &log, &e))?;
    if let Some(user) = auth::squid_user() {
        chown(&log, Some(user.uid.as_raw()), None).map_err(|e| errors::file("hand over", &log, &e))?;
    }
    let child = spawn(site, &mark.uid, &folder.join(OUTPUT))?;
    // From here on a kill of ours leaves a child without a record: the next look finds it by its arguments.
    match child {
        Some(child) => {
            let json = serde_json::to_vec(&child).expect("two numbers always serialize");
            directory::write(&folder.join(RECORD), &json, Readers::All)
        }
        // It has ended already: whoever waits for it to listen will see.
        None => Ok(()),
    }
}

/// What a Squid of this folder would be started with now.
pub(super) fn configuration(site: &Site, owner: &OwnerFile, helper: Option<&Path>) -> String {
    let mark = owner.mark();
    let folder = site.folder(&mark.uid);
    let (passwords, log) = (folder.join(PASSWORDS), folder.join(CACHE_LOG));
    let user = auth::squid_user();
    let conf = SquidConf {
        about: mark.key.as_str(),
        listen: owner.address(),
        openings: &site.openings,
        auth: helper.map(|helper| BasicAuth { helper, passwords: &passwords }),
        cache_log: &log,
        user: user.as_ref().map(|user| user.name.as_str()),
    };
    conf.render()
}

fn spawn(site: &Site, uid: &Uid, output: &Path) -> Result<Option<Child>, OpError> {
    let binary = &site.entry.binary;
    let log = log_file(output).map_err(|e| errors::file("write", output, &e))?;
    let again = log.try_clone().map_err(|e| errors::file("write", output, &e))?;
    let mut command = Command::new(binary);
    command
        .args(["-N", "-n", &evidence::service_name(uid), "-f"])
        .arg(site.conf(uid))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(again)
        // Our own environment has tokens in it. And no directory of ours is kept busy.
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LC_ALL", "C")
        .current_dir("/");
    evidence::start(|| {
        // A session of its own: it outlives us, and a Ctrl-C in our terminal.
        let child = CommandWrap::from(command).wrap(ProcessSession).spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => errors::binary_missing(binary, "does not exist, or its interpreter does not"),
            io::ErrorKind::PermissionDenied => errors::binary_missing(binary, "cannot be executed"),
            _ => OpError::transient(Reason::Internal, format!("cannot start `{}`: {error}", binary.display())),
        })?;
        Ok(child.id())
    })
}

/// An empty log that is appended to, so that it can be cut while it is written.
fn log_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path)?;
    file.set_len(0)?;
    Ok(file)
}
