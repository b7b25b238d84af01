//! Which port of the range a new Squid gets.

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpListener};

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::Uid;
use egress_actors::domain::reason::Reason;
use rand::RngExt as _;

use super::directory::OWNER;
use super::mark::OwnerFile;
use super::{Site, directory};

/// A port that no other folder names and nobody listens on. Its folder must be written before `choosing` ends.
///
/// It begins anywhere in the range: a port that was just given up is not the next one to be taken, so that what is
/// left of an old lease rather meets nobody than somebody else.
pub(super) fn choose(site: &Site, own: &Uid, refused: &[u16]) -> Result<u16, OpError> {
    let promised = promised(site, Some(own))?;
    let range = &site.entry.ports;
    let ports: Vec<u16> = range.clone().collect();
    let first = if ports.is_empty() { 0 } else { rand::rng().random_range(0..ports.len()) };
    for &port in ports[first..].iter().chain(&ports[..first]) {
        if !promised.contains(&port) && !refused.contains(&port) && is_free(site, port)? {
            return Ok(port);
        }
    }
    let detail = format!(
        "no port of {}-{} is free on {} ({} are used by instances): widen `ports` of entry `{}`",
        range.start(),
        range.end(),
        site.entry.listen,
        promised.len(),
        site.entry.name
    );
    Err(OpError::transient(Reason::PortRangeExhausted, detail))
}

/// The ports that folders name, whoever owns them. `except` is the one that is being made.
pub(super) fn promised(site: &Site, except: Option<&Uid>) -> Result<HashSet<u16>, OpError> {
    let mut ports = HashSet::new();
    for uid in directory::folders(site)? {
        if Some(&uid) != except {
            // A mark that cannot be read is told by `list`; its Squid, if any, listens and so keeps its port.
            let owner = OwnerFile::read(&site.folder(&uid).join(OWNER)).ok().flatten();
            ports.extend(owner.map(|owner| owner.port));
        }
    }
    Ok(ports)
}

/// That nobody listens there: by trying.
pub(super) fn is_free(site: &Site, port: u16) -> Result<bool, OpError> {
    match TcpListener::bind(SocketAddr::new(site.entry.listen, port)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(false),
        Err(error) => {
            let detail = format!(
                "cannot listen on {} port {port}: {error}; set `listen` and `ports` of entry `{}`",
                site.entry.listen, site.entry.name
            );
            Err(OpError::permanent(Reason::ConfigInvalid, detail))
        }
    }
}
