//! Where the objects are, and all that differs with it: a directory of manifests, or a cluster.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use egress_actors::domain::claim::ClaimSettings;
use egress_actors::domain::id::OperatorId;
use egress_actors::kit::supervisor::ChildSpec;
use egress_actors::names;
use egress_actors::operator::Ports;
use egress_actors::ports::{Candidacy, Prober};
use metrics::gauge;
use tokio::runtime::Handle;

use super::{StartError, waiting};
use crate::args::OnExit;
use crate::config::{self, Config, Mode};
use crate::k8s::{Cluster, ClusterError, Identity};
use crate::providers::kubernetes;
use crate::server::{Check, ManifestProblem};
use crate::standalone::{Options, Problem, Standalone};

/// Looks at the manifests come each second; one that takes so long is stuck in a file system that hangs.
const LOOK_WITHIN: Duration = Duration::from_secs(15);

/// A replica that stands by looks every two seconds or so whether the claim is free. Where there is none, a pod that ends
/// waits so long in vain. A pod that has just started leaves the claim to such a one for as long: the Service would lead to
/// it before the kubelet has found it ready.
const HAND_OVER: Duration = Duration::from_secs(5);

/// The one that was asked for, opened.
#[derive(Debug, Clone)]
pub(super) enum World {
    Directory(Arc<Standalone>, OnExit),
    Cluster(Arc<Cluster>, Option<Candidacy>),
}

impl World {
    /// `edge`: the runtime of the election.
    pub(super) async fn open(config: &Config, edge: &Handle) -> Result<Self, StartError> {
        match &config.mode {
            Mode::Standalone(mode) => {
                let options = Options { allow_mass_removal: mode.allow_mass_removal, ..Options::default() };
                let standalone = Standalone::open(&mode.manifests, &mode.state_dir, options)?;
                Ok(Self::Directory(Arc::new(standalone), mode.on_exit))
            }
            Mode::Cluster(mode) => {
                let (namespace, operator) = (config.proxy_namespace.clone(), config.operator_id.clone());
                let connect =
                    async || Cluster::connect(namespace.clone(), operator.clone(), Identity::from_env()).await;
                let cluster = match connect().await {
                    Err(ClusterError::Away(why)) => waiting::until_there(config, edge, why, connect).await?,
                    answered => answered?,
                };
                let cluster = Arc::new(cluster);
                let candidacy = stand(&cluster, mode, edge).await?;
                Ok(Self::Cluster(cluster, candidacy))
            }
        }
    }

    pub(super) fn ports(&self, prober: Arc<dyn Prober>) -> Ports {
        match self {
            Self::Directory(standalone, _) => Ports {
                source: standalone.source(),
                records: standalone.records(),
                events: standalone.event_sink(),
                secrets: standalone.secrets(),
                prober,
                candidacy: None,
            },
            Self::Cluster(cluster, candidacy) => Ports {
                source: cluster.source(),
                records: cluster.records(),
                events: cluster.event_sink(),
                secrets: cluster.secrets(),
                prober,
                candidacy: candidacy.clone(),
            },
        }
    }

    pub(super) fn operator_id(&self, given: Option<&OperatorId>) -> OperatorId {
        match self {
            Self::Directory(standalone, _) => given.unwrap_or_else(|| standalone.operator_id()).clone(),
            Self::Cluster(cluster, _) => cluster.operator_id().clone(),
        }
    }

    /// The upper half of fencing numbers where there is no election: it grows with each start.
    pub(super) fn epoch(&self) -> u32 {
        match self {
            Self::Directory(standalone, _) => standalone.starts(),
            // Nothing of ours outlives the pod. Seconds fit until 2106.
            Self::Cluster(..) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
            }
        }
    }

    /// Where the provider `kubernetes` makes its pods.
    pub(super) fn pods(&self) -> Result<kubernetes::Cluster, StartError> {
        Ok(match self {
            Self::Directory(..) => kubernetes::Cluster::inferred(),
            Self::Cluster(cluster, _) => {
                let namespace = cluster.identity().pod.as_ref().map(|_| cluster.identity().namespace.to_string());
                kubernetes::Cluster::of(cluster.another_client()?, namespace)
            }
        })
    }

    /// What has to run for the ports to work.
    pub(super) fn children(&self) -> Vec<ChildSpec> {
        match self {
            Self::Directory(..) => Vec::new(),
            Self::Cluster(cluster, _) => cluster.children(),
        }
    }

    /// Whether a Service leads crawlers to this replica while it leads, so that it must be there until another one does.
    pub(super) fn hands_over(&self) -> bool {
        match self {
            Self::Directory(..) | Self::Cluster(_, None) => false,
            Self::Cluster(_, Some(candidacy)) => candidacy.settings.hand_over.is_some(),
        }
    }

    /// Whether crawlers come from other machines, so that a lease API without a token is of no use.
    pub(super) const fn needs_a_token(&self) -> bool {
        matches!(self, Self::Cluster(..))
    }

    /// Resolves when nothing can be stored any more.
    pub(super) async fn ended(&self) {
        match self {
            Self::Directory(standalone, _) => standalone.ended().await,
            Self::Cluster(..) => pending().await,
        }
    }

    /// What is wrong with the manifests.
    pub(super) fn problems(&self) -> Vec<ManifestProblem> {
        match self {
            Self::Directory(standalone, _) => standalone.problems().into_iter().map(problem).collect(),
            Self::Cluster(..) => Vec::new(),
        }
    }

    pub(super) fn measure(&self) {
        if let Self::Directory(standalone, _) = self {
            gauge!(names::STANDALONE_LOOK_AGE_SECONDS).set(standalone.look_age().as_secs_f64());
        }
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let Self::Directory(standalone, _) = self else { return Vec::new() };
        let [kept, looked, manifests, told] = std::array::from_fn(|_| standalone.clone());
        vec![
            Check::needed("state-store", move || is_kept(kept.is_kept())),
            Check::informative("manifests-looked-at", move || is_looked_at(looked.look_age())),
            Check::informative("mass-removal", move || {
                match manifests.held_back() {
                0 => Ok("nothing is held back".to_owned()),
                1 => Err("1 manifest is gone and the removal of its Proxy held back (/admin/problems names it): put it back, \
                          or start with --allow-mass-removal"
                    .to_owned()),
                held => Err(format!(
                    "{held} manifests are gone and the removal of their Proxies held back (/admin/problems names them): put \
                     them back, or start with --allow-mass-removal"
                )),
            }
            }),
            Check::informative("manifest-problems", move || manifest_problems(&told.problems())),
        ]
    }

    pub(super) fn tell_start(&self, config: &Config) {
        let (version, lease_api, admin) = (env!("CARGO_PKG_VERSION"), config.lease_api.addr, config.admin.addr);
        let operator = self.operator_id(config.operator_id.as_ref());
        match (self, &config.mode) {
            (Self::Directory(..), Mode::Standalone(mode)) => tracing::info!(
                version, manifests = %mode.manifests.display(), state = %mode.state_dir.display(), %lease_api, %admin,
                %operator, "starting"
            ),
            (Self::Cluster(cluster, candidacy), _) => tracing::info!(
                version, cluster = cluster.url(), namespace = config.proxy_namespace.as_deref().unwrap_or("all"),
                replica = %cluster.identity().replica, elects = candidacy.is_some(), %lease_api, %admin, %operator,
                "starting"
            ),
            (Self::Directory(..), Mode::Cluster(_)) => {}
        }
    }
}

/// Where instances of the provider `process` have their directories. Standalone mode has made it already, with its store.
pub(super) fn state_dir(mode: &Mode) -> Result<PathBuf, StartError> {
    let dir = match mode {
        Mode::Standalone(config::Standalone { state_dir, .. }) => return Ok(state_dir.clone()),
        Mode::Cluster(config::Cluster { state_dir: Some(state_dir), .. }) => state_dir.clone(),
        // Nobody else can guess it, and it need not outlive us.
        Mode::Cluster(config::Cluster { state_dir: None, .. }) => {
            std::env::temp_dir().join(format!("egress-proxies-operator-{}", uuid::Uuid::new_v4()))
        }
    };
    std::fs::create_dir_all(&dir).map_err(|why| StartError::StateDir { dir: dir.clone(), why })?;
    Ok(dir)
}

async fn stand(cluster: &Arc<Cluster>, mode: &config::Cluster, edge: &Handle) -> Result<Option<Candidacy>, StartError> {
    if !mode.leader_elect.unwrap_or(cluster.identity().pod.is_some()) {
        return Ok(None);
    }
    // The connections of the client belong to the runtime on which it was made.
    let there = cluster.clone();
    let store = edge
        .spawn(async move { there.claim_store() })
        .await
        .map_err(|error| StartError::Runtime(std::io::Error::other(error)))??;
    let hand_over = cluster.identity().pod.as_ref().map(|_| HAND_OVER);
    let settings = ClaimSettings { hand_over, ..ClaimSettings::default() };
    Ok(Some(Candidacy { store, identity: cluster.identity().replica.clone(), settings }))
}

fn problem(found: Problem) -> ManifestProblem {
    ManifestProblem {
        file: Path::new(&found.file).to_path_buf(),
        line: Some(found.line).filter(|&line| line > 0),
        message: found.message,
    }
}

fn is_kept(kept: bool) -> Result<String, String> {
    if kept {
        Ok("changes are stored".to_owned())
    } else {
        Err("the keeper of standalone mode has ended: nothing is stored any more, the operator ends".to_owned())
    }
}

fn manifest_problems(problems: &[Problem]) -> Result<String, String> {
    match problems {
        [] => Ok("the manifests are right".to_owned()),
        [only] => Err(only.to_string()),
        [first, rest @ ..] => Err(format!("{first}; and {} more: see /admin/problems", rest.len())),
    }
}

/// A directory that hangs gives neither manifests nor an error.
fn is_looked_at(age: Duration) -> Result<String, String> {
    if age < LOOK_WITHIN {
        return Ok("the manifests are looked at".to_owned());
    }
    Err(format!(
        "no look at the manifests has ended for {} s: the file system of --standalone (or of --state-dir) hangs; what is \
         known goes on, and no change is seen",
        age.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_hangs_shows_and_a_slow_one_does_not() {
        assert!(is_looked_at(Duration::from_secs(14)).is_ok());
        let told = is_looked_at(Duration::from_secs(75)).unwrap_err();
        assert!(told.contains("75 s") && told.contains("--standalone"), "{told}");
    }

    #[test]
    fn an_operator_that_stores_nothing_is_not_ready() {
        assert!(is_kept(true).is_ok());
        assert!(is_kept(false).unwrap_err().contains("nothing is stored"));
    }
}
