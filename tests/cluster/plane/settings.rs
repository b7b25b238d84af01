//! Flags, files and ports of the parts: everything that is written before they start.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::Options;
use crate::ports;

/// The token of the cluster admin (group `system:masters`). No secret: it opens a server on loopback, for this test.
pub(super) const ADMIN: &str = "admin-of-the-test-plane";

const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
  - {level: None, users: ['system:apiserver']}
  - {level: Metadata}
";

#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) etcd: u16,
    peer: u16,
    pub(super) api: u16,
}

impl Ports {
    pub(super) fn free() -> Self {
        Self { etcd: ports::one(), peer: ports::one(), api: ports::one() }
    }
}

/// The files that the flags name.
pub(super) fn write(dir: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(dir.join("accounts.key"), key.serialize_pem()).unwrap();
    std::fs::write(dir.join("accounts.pub"), key.public_key_pem()).unwrap();
    std::fs::write(dir.join("tokens.csv"), format!("{ADMIN},admin,admin,\"system:masters\"\n")).unwrap();
    std::fs::write(dir.join("audit.yaml"), AUDIT_POLICY).unwrap();
}

pub(super) fn etcd(dir: &Path, ports: Ports) -> Vec<String> {
    let (client, peer) = (format!("http://127.0.0.1:{}", ports.etcd), format!("http://127.0.0.1:{}", ports.peer));
    vec![
        format!("--data-dir={}", dir.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--log-level=warn".into(),
        // Durability over a power failure is nothing that a test can see.
        "--unsafe-no-fsync".into(),
    ]
}

pub(super) fn api(dir: &Path, ports: Ports, options: Options) -> Vec<String> {
    let path = |name: &str| dir.join(name).display().to_string();
    let mut flags = vec![
        format!("--etcd-servers=http://127.0.0.1:{}", ports.etcd),
        format!("--cert-dir={}", path("certs")),
        format!("--secure-port={}", ports.api),
        "--bind-address=127.0.0.1".into(),
        // The Service `kubernetes` may not have a loopback endpoint, and nobody here goes through it.
        "--advertise-address=127.0.0.1".into(),
        "--endpoint-reconciler-type=none".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", path("accounts.pub")),
        format!("--service-account-signing-key-file={}", path("accounts.key")),
        format!("--token-auth-file={}", path("tokens.csv")),
        "--authorization-mode=RBAC".into(),
        "--allow-privileged=true".into(),
    ];
    if options.audit {
        flags.push(format!("--audit-policy-file={}", path("audit.yaml")));
        flags.push(format!("--audit-log-path={}", audit_log(dir).display()));
        // It would be begun anew at 100 MB, and what was asked before would be in another file.
        flags.push("--audit-log-maxsize=100000".into());
    }
    flags
}

pub(super) fn controllers(dir: &Path) -> Vec<String> {
    let path = |name: &str| dir.join(name).display().to_string();
    vec![
        format!("--kubeconfig={}", path("controllers.yaml")),
        format!("--service-account-private-key-file={}", path("accounts.key")),
        format!("--root-ca-file={}", authority(dir).display()),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
        // A namespace that goes away is waited for by tests.
        "--concurrent-namespace-syncs=10".into(),
    ]
}

/// The API server signs its own certificate at its first start, and keeps it.
pub(super) fn authority(dir: &Path) -> PathBuf {
    dir.join("certs/apiserver.crt")
}

pub(super) fn audit_log(dir: &Path) -> PathBuf {
    dir.join("audit.log")
}

/// A kubeconfig with one context. JSON, which is YAML.
pub(super) fn kubeconfig(url: &str, authority: &Path, token: &str) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "plane", "cluster": {"server": url, "certificate-authority": authority}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "user"}}],
        "current-context": "plane",
    })
    .to_string()
}

pub(super) fn write_kubeconfig(path: &Path, url: &str, authority: &Path, token: &str) {
    std::fs::write(path, kubeconfig(url, authority, token)).unwrap();
}
