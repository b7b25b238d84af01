//! The image side against scripted pools, and against real sockets.

mod flights;
mod http;
mod pool;
mod race;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;

use super::fetch::{Fetch, Limits};
use super::flights::{Bounds, Flights, NoMeter, Site};
use super::policy::Policy;
use super::source::Open;
use super::store::ImageStore;
use super::{Base, Wanted};
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{HostName, ProviderName};

const LIMITS: Limits = Limits { idle: Duration::from_secs(20), total: Duration::from_mins(30) };
const NAME: &str = "base-debian.raw";
const MARKER: &str = "base-debian.raw.ok";

fn wanted(sha256: Option<[u8; 32]>) -> Wanted {
    Wanted {
        stem: "base-debian".to_owned(),
        called: "debian".to_owned(),
        entry: "home".to_owned(),
        url: "https://u:secret@images.example.com/debian.raw?token=secret".parse().unwrap(),
        sha256,
        format: None,
        policy: Policy::Configured,
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn site(host: &str) -> Site {
    Site { provider: ProviderName::parse("home").unwrap(), host: HostName::parse(host).unwrap() }
}

fn flights() -> Flights {
    Flights::new(Handle::current(), Bounds::default(), Arc::new(NoMeter))
}

/// One fetch to its end.
async fn fetch(store: Arc<dyn ImageStore>, source: Arc<dyn Open>, wanted: Wanted) -> Result<Base, OpError> {
    let begin = |wanted, cabin| Fetch { store, source, wanted, limits: LIMITS, cabin }.run();
    flights().base(site("hv1"), wanted, Duration::from_hours(24), begin).await
}
