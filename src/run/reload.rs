//! Follows the providers config: a good file is put to work, a bad one is told and the old one kept.

use std::sync::{Arc, PoisonError};

use egress_actors::kit::task::StopSignal;
use egress_actors::names;
use egress_actors::providers::ProvidersHandle;
use tokio::sync::Mutex;

use super::open::Opener;
use crate::config::Config;
use crate::config::watch::{Change, ProvidersFile};
use crate::server::Tls;

#[derive(Debug, Clone)]
pub(super) struct Reload(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    /// Held while the file is looked at, so that a reload on request and the periodic look do not cross.
    file: Mutex<ProvidersFile>,
    opener: Opener,
    providers: ProvidersHandle,
    tls: Option<Arc<Tls>>,
    /// Why the file on disk is not in use, for readers that cannot wait.
    refused: std::sync::Mutex<Option<String>>,
}

impl Reload {
    pub(super) fn new(config: &Config, opener: Opener, providers: ProvidersHandle, tls: Option<Arc<Tls>>) -> Self {
        let file = Mutex::new(ProvidersFile::new(config.providers_config.clone(), &config.providers));
        Self(Arc::new(Inside { file, opener, providers, tls, refused: std::sync::Mutex::default() }))
    }

    /// Whether the file on disk is the one in use.
    pub(super) fn state(&self) -> Result<String, String> {
        match &*self.0.refused.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok("the file on disk is in use".to_owned()),
            Some(why) => Err(format!("the file on disk is refused and the one before goes on: {why}")),
        }
    }

    fn apply(&self, change: Change) -> Result<String, String> {
        let mut refused = self.0.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match change {
            Change::Entries(loaded) => {
                *refused = None;
                self.0.providers.config_refused(None);
                metrics::gauge!(names::CONFIG_RELOAD_FAILED).set(0.0);
                for warning in &loaded.warnings {
                    tracing::warn!("{warning}");
                }
                tracing::info!(entries = loaded.entries.len(), "providers config reloaded");
                self.0.providers.configure(self.0.opener.open(&loaded.entries));
                Ok(format!("{} provider entries are in use", loaded.entries.len()))
            }
            Change::Restored => {
                *refused = None;
                self.0.providers.config_refused(None);
                metrics::gauge!(names::CONFIG_RELOAD_FAILED).set(0.0);
                tracing::info!("the providers config is good again, and says what is in use");
                Ok("the file is good and in use already".to_owned())
            }
            Change::Refused(error) => {
                metrics::gauge!(names::CONFIG_RELOAD_FAILED).set(1.0);
                tracing::error!(%error, "providers config refused: the one before goes on");
                *refused = Some(error.to_string());
                self.0.providers.config_refused(Some(error.to_string()));
                Err(error.to_string())
            }
        }
    }

    /// Looks at the file, and at the certificate, because somebody asked for it.
    pub(super) async fn now(self) -> Result<String, String> {
        if let Some(tls) = &self.0.tls {
            tls.reload().await.map_err(|error| error.to_string())?;
        }
        let change = self.0.file.lock().await.reload().await;
        match change {
            Some(change) => self.apply(change),
            None => Ok("nothing has changed".to_owned()),
        }
    }

    /// Looks at the file now and then.
    pub(super) async fn follow(self, stop: StopSignal) -> Result<(), String> {
        loop {
            let change = tokio::select! {
                () = stop.wait() => return Ok(()),
                change = self.next() => change,
            };
            // What was refused is told in the log, by the metric, the check, and each ProviderHealth.
            let _told = self.apply(change);
        }
    }

    /// Gives the file up between looks, for whoever wants it looked at now.
    async fn next(&self) -> Change {
        loop {
            tokio::time::sleep(crate::config::watch::LOOK_EVERY).await;
            if let Some(change) = self.0.file.lock().await.look_once().await {
                return change;
            }
        }
    }
}
