//! Against a real sshd on the loopback, and against peers that are none.

mod ends;
mod logins;
mod peers;
mod sockets;
mod sshd;

use std::time::Duration;

use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::reason::Reason;
use tokio::time::{sleep, timeout};

use super::{SshConnection, SshLimits};

/// For what must happen; far above what it takes.
const SOON: Duration = Duration::from_secs(20);

/// A dead host is to be noticed by keepalives within a second, and by inactivity a little later.
fn quick() -> SshLimits {
    SshLimits {
        keepalive_interval: Duration::from_millis(200),
        inactivity: Duration::from_millis(1500),
        ..SshLimits::default()
    }
}

/// Nothing of a connection's own ends it.
fn patient() -> SshLimits {
    let long = Duration::from_secs(600);
    SshLimits { keepalive_interval: long, inactivity: long, tcp_user_timeout: long, ..SshLimits::default() }
}

async fn eventually(what: &str, mut seen: impl FnMut() -> bool) {
    let wait = async {
        while !seen() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(SOON, wait).await.is_ok(), "not in time: {what}");
}

fn told(error: &OpError) -> (Class, Reason) {
    assert!(!error.detail.contains('\n') && !error.detail.ends_with('.'), "{error}");
    (error.class, error.reason)
}

fn refused(dialled: Result<SshConnection, OpError>) -> OpError {
    dialled.expect_err("the dial is refused")
}
