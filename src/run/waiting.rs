//! A start while the API server is away: who this operator is can only be asked there, and before that is known nothing
//! may be touched. Meanwhile the admin address tells it: alive, and not ready.

use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::backoff::Backoff;
use egress_actors::kit::task::StopSignal;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Listener, StartError};
use crate::config::Config;
use crate::k8s::{Cluster, ClusterError};
use crate::server::{Check, Limits, Tls, serve, waiting};

/// First and longest delay between two tries.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// An API server that has just come up refuses everybody, until it has read its roles.
const REFUSES_AT_FIRST: Duration = Duration::from_secs(30);

/// Tries until there is an answer. `why`: what the first try met.
pub(super) async fn until_there(
    config: &Config,
    edge: &Handle,
    why: String,
    connect: impl AsyncFn() -> Result<Cluster, ClusterError>,
) -> Result<Cluster, StartError> {
    tracing::warn!(error = %why, "the API server is away: the operator waits for it");
    let (tell, told) = watch::channel(why);
    let listener = Listener::bind("--admin-addr", config.admin.addr)?;
    let tls = match &config.tls {
        Some(files) => Some(Tls::load(&files.cert, &files.key).await?),
        None => None,
    };
    let (stop, stopped) = StopSignal::new();
    let server = edge.spawn(tell_meanwhile(listener, tls, stopped, told));
    let mut backoff = Backoff::new(AGAIN.0, AGAIN.1);
    let mut was_away = Instant::now();
    let cluster = loop {
        tokio::time::sleep(backoff.next(rand::random())).await;
        match connect().await {
            Err(ClusterError::Away(why)) => {
                tracing::debug!(error = %why, "the API server is still away");
                tell.send_replace(why);
                was_away = Instant::now();
            }
            Err(ClusterError::NoId(why)) if was_away.elapsed() < REFUSES_AT_FIRST => drop(tell.send_replace(why)),
            answered => break answered,
        }
    };
    // The address is free for the server of the tree then.
    stop.set();
    let abort = server.abort_handle();
    if tokio::time::timeout(Limits::default().finish + Duration::from_secs(1), server).await.is_err() {
        // Whoever is still being answered is cut off rather than the address kept.
        abort.abort();
    }
    let cluster = cluster?;
    tracing::info!("the API server answers");
    Ok(cluster)
}

async fn tell_meanwhile(
    listener: Listener,
    tls: Option<Arc<Tls>>,
    stop: StopSignal,
    why: watch::Receiver<String>,
) -> Result<(), String> {
    let check = Check::needed("cluster", move || Err(format!("waiting for the API server: {}", *why.borrow())));
    serve(listener.again()?, waiting(check), tls, stop, Limits::default()).await
}
