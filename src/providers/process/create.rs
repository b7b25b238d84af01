//! Create: folder, child, and the wait until it listens. Each part is skipped if an earlier call did it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::Uid;
use egress_actors::domain::instance::{Instance, InstanceSpec, InstanceState};
use egress_actors::domain::reason::Reason;
use tokio::process::Command;
use tokio::time::Instant;

use super::auth::{self, Wanted};
use super::directory::{self, CACHE_LOG, Folder, OUTPUT, OWNER, Readers};
use super::evidence::{self, Listeners};
use super::mark::OwnerFile;
use super::steps::{self, Turn};
use super::{Site, delete, get, oneshot, port, spawn};
use crate::providers::squid_words::words_of_squid;

/// Squid listens after 0.1 s; a machine that needs longer is told `Starting`, and looked at again by the next list.
const LISTENS_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// A port can be taken by others between our trial and Squid's start; so often in a row it is not by chance.
const TRIES: usize = 5;

/// `squid -k parse` takes 0.03 s.
const PARSE_LIMIT: Duration = Duration::from_secs(5);

pub(super) async fn create(site: &Arc<Site>, spec: &InstanceSpec) -> Result<Instance, OpError> {
    let uid = &spec.mark.uid;
    let turn = Turn::take(site, uid).await?;
    let mut refused = Vec::new();
    for _ in 0..TRIES {
        let (job, not) = (spec.clone(), refused.clone());
        let address = match turn.change("making the instance", move |site| prepare(site, &job, &not)).await? {
            Prepared::Started { address } => address,
            Prepared::Stray => {
                delete::end(&turn, site, &spec.mark).await?;
                continue;
            }
        };
        if let Some(instance) = wait(site, spec, address).await? {
            return Ok(instance);
        }
        let of = uid.clone();
        let end = steps::look(site, "reading squid's log", move |site| why_it_ended(site, &of, address.port())).await?;
        match end {
            End::PortTaken => refused.push(address.port()),
            End::Said(words) => {
                let error = classify(site, uid, words).await;
                // What never ran is no instance; its words are in the error.
                let mark = spec.mark.clone();
                turn.change("removing what did not start", move |site| delete::retire(site, &mark)).await?;
                return Err(error);
            }
        }
    }
    let detail = format!("no squid of ours stayed in {TRIES} tries; ports that others took meanwhile: {refused:?}");
    Err(OpError::transient(Reason::PortRangeExhausted, detail))
}

enum Prepared {
    /// A Squid runs on the folder's configuration, to listen there.
    Started { address: SocketAddr },
    /// A Squid runs on a configuration whose folder somebody removed.
    Stray,
}

fn prepare(site: &Site, spec: &InstanceSpec, refused: &[u16]) -> Result<Prepared, OpError> {
    let uid = &spec.mark.uid;
    let wanted = Wanted::of(site, spec.credentials.as_ref());
    let owner = match directory::read(site, &spec.mark)? {
        Folder::Ours(owner) => {
            if evidence::one_of(site, uid)?.is_some() {
                if matches!(wanted, Wanted::Given(_)) {
                    // The Secret may have changed since; the helper reads the file anew when it does.
                    auth::write(&site.folder(uid), &wanted)?;
                }
                return Ok(Prepared::Started { address: owner.address() });
            }
            Some(owner)
        }
        Folder::Absent if evidence::one_of(site, uid)?.is_some() => return Ok(Prepared::Stray),
        Folder::Absent => None,
    };
    spawn::installed(site, &wanted)?;

    let owner = {
        // Until the folder names the port, nobody else may choose.
        let _choosing = site.shared.choosing();
        directory::sweep(site)?;
        match owner {
            None => {
                let port = port::choose(site, uid, refused)?;
                let owner = OwnerFile::new(&spec.mark, site.entry.listen, port, SystemTime::now());
                directory::make(site, &owner, |folder| auth::write(folder, &wanted))?;
                owner
            }
            Some(old) => {
                let kept = site.entry.ports.contains(&old.port)
                    && old.listen == site.entry.listen
                    && !refused.contains(&old.port)
                    && port::is_free(site, old.port)?;
                let port = if kept { old.port } else { port::choose(site, uid, refused)? };
                let owner = OwnerFile::new(&spec.mark, site.entry.listen, port, SystemTime::now());
                auth::write(&site.folder(uid), &wanted)?;
                directory::write(&site.folder(uid).join(OWNER), owner.to_json().as_bytes(), Readers::All)?;
                owner
            }
        }
    };
    spawn::start(site, &owner, &wanted)?;
    Ok(Prepared::Started { address: owner.address() })
}

/// The instance once it listens, or as it is after the limit. `None` if it ended.
async fn wait(site: &Arc<Site>, spec: &InstanceSpec, address: SocketAddr) -> Result<Option<Instance>, OpError> {
    let until = Instant::now() + LISTENS_WITHIN;
    loop {
        let mark = spec.mark.clone();
        let seen = steps::look(site, "looking whether squid listens", move |site| {
            let Some(child) = evidence::one_of(site, &mark.uid)? else { return Ok(None) };
            let listens = Listeners::now()?.are_of(child, address);
            let instance = get::look(site, &mark)?;
            Ok(Some((listens, instance)))
        });
        let Some((listens, instance)) = seen.await? else { return Ok(None) };
        match instance.state {
            InstanceState::Running if listens => return Ok(Some(instance)),
            // It listens, and something of it cannot be read: waiting changes nothing.
            InstanceState::Unknown => return Ok(Some(instance)),
            InstanceState::Stopped => return Ok(None),
            _ if Instant::now() >= until => return Ok(Some(instance)),
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

enum End {
    PortTaken,
    Said(Option<String>),
}

fn why_it_ended(site: &Site, uid: &Uid, port: u16) -> Result<End, OpError> {
    if !port::is_free(site, port)? {
        return Ok(End::PortTaken);
    }
    let folder = site.folder(uid);
    // Standard error first: what ends Squid before it has a log is said there.
    let said = [OUTPUT, CACHE_LOG].iter().filter_map(|log| std::fs::read(folder.join(log)).ok());
    Ok(End::Said(said.into_iter().find_map(|log| words_of_squid(&String::from_utf8_lossy(&log)))))
}

/// A configuration that Squid refuses is refused again at every try; other ends may be bad luck.
async fn classify(site: &Arc<Site>, uid: &Uid, words: Option<String>) -> OpError {
    let mut parse = Command::new(&site.entry.binary);
    parse.args(["-k", "parse", "-f"]).arg(site.conf(uid)).stderr(std::process::Stdio::piped());
    let refused = match oneshot::run(parse, PARSE_LIMIT).await {
        // One that was killed (a signal, no code) has refused nothing.
        Ok(Some(output)) if output.status.code().is_some_and(|code| code != 0) => {
            Some(words_of_squid(&String::from_utf8_lossy(&output.stderr)))
        }
        _ => None,
    };
    let binary = site.entry.binary.display();
    let silent = || "it says nothing".to_owned();
    if let Some(said) = refused {
        let said = said.or(words).unwrap_or_else(silent);
        OpError::permanent(Reason::ConfigRefused, format!("`{binary}` refuses the generated configuration: {said}"))
    } else {
        let said = words.unwrap_or_else(silent);
        OpError::transient(Reason::InstanceStopped, format!("`{binary}` ended at once: {said}"))
    }
}
