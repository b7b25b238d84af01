//! From the spec of an instance to its objects. Pure: values to values.
//!
//! The pod fulfils the `restricted` pod security standard whatever the entry says, and knows no token of the cluster.

use std::collections::BTreeMap;
use std::path::Path;

use egress_actors::domain::error::OpError;
use egress_actors::domain::instance::{Credentials, InstanceSpec};
use egress_actors::domain::reason::Reason;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::networking::v1 as net;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use secrecy::ExposeSecret as _;

use super::mark;
use crate::config::providers::{Auth, Effect, KubernetesEntry, Operator, PodSize, PullPolicy, Resources, Toleration};
use crate::providers::passwords;
use crate::providers::squid_conf::{BasicAuth, Opening, SquidConf};

pub(super) const CONTAINER: &str = "squid";
/// Says what the instance asks of its clients, for whoever reads the pod later: see [`Asked`].
const CREDENTIALS: &str = "crawl.example.com/credentials";
/// Tells pods apart whose configuration has changed since.
const CONFIG: &str = "crawl.example.com/config";

const CONF_DIR: &str = "/etc/egress-proxy";
const CONF: &str = "squid.conf";
const AUTH_DIR: &str = "/etc/egress-proxy-auth";
const PASSWORDS: &str = "passwords";
const USERNAME: &str = "username";
const PASSWORD: &str = "password";

/// What Squid may write to: it writes nothing there but what it must, and a full one must not fill a node (fault 105).
const SCRATCH: [(&str, &str, &str); 3] =
    [("run", "/var/run", "4Mi"), ("spool", "/var/spool/squid", "4Mi"), ("tmp", "/tmp", "16Mi")];

/// Squid ends within 2.5 s by its `shutdown_lifetime`; after this it is killed.
const GRACE_SECS: i64 = 10;

/// What an instance asks of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    /// The credentials of the Proxy's own Secret.
    Given,
    Generated,
}

impl Asked {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Given => "given",
            Self::Generated => "generated",
        }
    }

    /// As written on a pod of ours.
    pub(super) fn of(pod: &core::Pod) -> Self {
        let written = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(CREDENTIALS));
        match written.map(String::as_str) {
            Some("generated") => Self::Generated,
            Some("given") => Self::Given,
            Some(_) | None => Self::Nothing,
        }
    }
}

/// The notes that pods would get now, to tell those that run with an older configuration.
#[derive(Debug)]
pub(super) struct Current {
    auth: Auth,
    open: String,
    guarded: String,
}

impl Current {
    pub(super) fn of(entry: &KubernetesEntry, openings: &[Opening]) -> Self {
        let note = |asked| note(entry, openings, asked);
        Self { auth: entry.auth, open: note(Asked::Nothing), guarded: note(Asked::Given) }
    }

    /// In which way a pod is not what would be made now. One without a note is of another version: it cannot be compared.
    pub(super) fn differs(&self, pod: &core::Pod) -> Option<&'static str> {
        let written = pod.metadata.annotations.as_ref()?.get(CONFIG)?;
        let (asked, note) = match (Asked::of(pod), self.auth) {
            // That is for the Proxy to say, not for the entry.
            (Asked::Given, _) => (Asked::Given, &self.guarded),
            (Asked::Nothing | Asked::Generated, Auth::Generated) => (Asked::Generated, &self.guarded),
            (Asked::Nothing | Asked::Generated, Auth::None) => (Asked::Nothing, &self.open),
        };
        if asked != Asked::of(pod) {
            Some("it asks for credentials, or does not, as `auth` said when it was made")
        } else if written != note {
            Some(
                "its squid.conf has other rules than `allowDestinations`, the probe target and this version would make",
            )
        } else {
            None
        }
    }
}

/// All that one instance needs but its Secret, whose content is made with the object.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) name: String,
    pub(super) asked: Asked,
    pub(super) config_map: core::ConfigMap,
    pub(super) network_policy: Option<net::NetworkPolicy>,
    pub(super) pod: core::Pod,
    meta: ObjectMeta,
}

impl Manifest {
    /// What cannot be made is a permanent error that names the field of the Proxy.
    pub(super) fn of(
        entry: &KubernetesEntry,
        openings: &[Opening],
        operator_namespace: Option<&str>,
        spec: &InstanceSpec,
    ) -> Result<Self, OpError> {
        if spec.user_data.is_some() {
            let detail = "spec.managed.cloudInit is for virtual machines and a pod has none: remove it";
            return Err(OpError::permanent(Reason::CloudInitInvalid, detail));
        }
        let size = match &spec.placement.size {
            None => PodSize::default(),
            Some(key) => choice(entry, "size", "sizes", key, &entry.sizes)?.clone(),
        };
        let image = match &spec.placement.image {
            None => &entry.image,
            Some(key) => choice(entry, "image", "images", key, &entry.images)?,
        };
        let asked = match (&spec.credentials, entry.auth) {
            (Some(_), _) => Asked::Given,
            (None, Auth::Generated) => Asked::Generated,
            (None, Auth::None) => Asked::Nothing,
        };
        let name = mark::name(&spec.mark);
        let meta = ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(entry.namespace.clone()),
            labels: Some(mark::labels(&spec.mark)),
            annotations: Some(mark::annotations(&spec.mark)),
            ..ObjectMeta::default()
        };
        let conf = conf(entry, openings, asked, spec.mark.key.as_str(), spec.port);
        let mut pod_meta = meta.clone();
        let notes = pod_meta.annotations.get_or_insert_default();
        notes.insert(CREDENTIALS.to_owned(), asked.as_str().to_owned());
        notes.insert(CONFIG.to_owned(), note(entry, openings, asked));
        let config_map = core::ConfigMap {
            metadata: meta.clone(),
            data: Some(BTreeMap::from([(CONF.to_owned(), conf)])),
            ..core::ConfigMap::default()
        };
        let pod = core::Pod {
            metadata: pod_meta,
            spec: Some(pod_spec(entry, &size, image, asked, &name, spec)),
            ..core::Pod::default()
        };
        let network_policy = entry
            .allowed_namespaces
            .as_ref()
            .map(|allowed| network_policy(meta.clone(), allowed, operator_namespace, spec.port));
        Ok(Self { name, asked, config_map, network_policy, pod, meta })
    }

    /// Squid's helper gets a hash; the password itself is there only where we made it, for us to read back.
    pub(super) fn secret(&self, credentials: &Credentials) -> Result<core::Secret, OpError> {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let mut data = BTreeMap::from([(PASSWORDS.to_owned(), bytes(&passwords::line(credentials)?))]);
        if self.asked == Asked::Generated {
            data.insert(USERNAME.to_owned(), bytes(&credentials.username));
            data.insert(PASSWORD.to_owned(), bytes(credentials.password.expose_secret()));
        }
        Ok(core::Secret { metadata: self.meta.clone(), data: Some(data), ..core::Secret::default() })
    }
}

/// The generated credentials in a Secret of ours, if it is whole.
pub(super) fn generated(secret: &core::Secret) -> Option<Credentials> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok().filter(|text| !text.is_empty());
    data.get(PASSWORDS)?;
    let password = secrecy::SecretString::from(text(PASSWORD)?);
    Some(Credentials { username: text(USERNAME)?.into(), password: std::sync::Arc::new(password) })
}

fn choice<'a, T>(
    entry: &KubernetesEntry,
    part: &str,
    list: &str,
    key: &str,
    all: &'a BTreeMap<String, T>,
) -> Result<&'a T, OpError> {
    all.get(key).ok_or_else(|| {
        let has = if all.is_empty() {
            "none".to_owned()
        } else {
            all.keys().map(|known| format!("`{known}`")).collect::<Vec<_>>().join(", ")
        };
        let detail = format!("placement.{part} `{key}` is not in `{list}` of provider `{}`; it has {has}", entry.name);
        OpError::permanent(Reason::SpecInvalid, detail)
    })
}

fn conf(entry: &KubernetesEntry, openings: &[Opening], asked: Asked, about: &str, port: u16) -> String {
    let passwords = Path::new(AUTH_DIR).join(PASSWORDS);
    let auth = BasicAuth { helper: Path::new(&entry.auth_helper), passwords: &passwords };
    SquidConf {
        about,
        listen: (std::net::Ipv4Addr::UNSPECIFIED, port).into(),
        openings,
        auth: (asked != Asked::Nothing).then_some(auth),
        // With `-d 1` Squid says to standard error what it has to say, which is where the kubelet reads its last words.
        cache_log: Path::new("/dev/null"),
        user: None,
    }
    .render()
}

/// Of what is the same for all instances of an entry.
fn note(entry: &KubernetesEntry, openings: &[Opening], asked: Asked) -> String {
    mark::hash(&conf(entry, openings, asked, "", 0), 8)
}

fn pod_spec(
    entry: &KubernetesEntry,
    size: &PodSize,
    image: &str,
    asked: Asked,
    name: &str,
    spec: &InstanceSpec,
) -> core::PodSpec {
    let mut volumes = vec![core::Volume {
        name: "conf".to_owned(),
        config_map: Some(core::ConfigMapVolumeSource {
            name: name.to_owned(),
            ..core::ConfigMapVolumeSource::default()
        }),
        ..core::Volume::default()
    }];
    let mut mounts = vec![mount("conf", CONF_DIR, true)];
    if asked != Asked::Nothing {
        volumes.push(core::Volume {
            name: "auth".to_owned(),
            secret: Some(core::SecretVolumeSource {
                secret_name: Some(name.to_owned()),
                default_mode: Some(0o440),
                items: Some(vec![core::KeyToPath {
                    key: PASSWORDS.to_owned(),
                    path: PASSWORDS.to_owned(),
                    mode: None,
                }]),
                ..core::SecretVolumeSource::default()
            }),
            ..core::Volume::default()
        });
        mounts.push(mount("auth", AUTH_DIR, true));
    }
    for (name, path, most) in SCRATCH {
        let size_limit = Some(Quantity(most.to_owned()));
        volumes.push(core::Volume {
            name: name.to_owned(),
            empty_dir: Some(core::EmptyDirVolumeSource { size_limit, medium: None }),
            ..core::Volume::default()
        });
        mounts.push(mount(name, path, false));
    }
    let mut node_selector = entry.node_selector.clone();
    node_selector.extend(size.node_selector.clone());
    let tolerations: Vec<_> = entry.tolerations.iter().chain(&size.tolerations).map(toleration).collect();
    let pull_secrets: Vec<_> =
        entry.image_pull_secrets.iter().map(|name| core::LocalObjectReference { name: name.clone() }).collect();
    core::PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        containers: vec![container(entry, size, image, mounts, spec.port)],
        image_pull_secrets: (!pull_secrets.is_empty()).then_some(pull_secrets),
        node_selector: (!node_selector.is_empty()).then_some(node_selector),
        restart_policy: Some("Always".to_owned()),
        security_context: Some(pod_security(entry, spec.port)),
        termination_grace_period_seconds: Some(GRACE_SECS),
        tolerations: (!tolerations.is_empty()).then_some(tolerations),
        topology_spread_constraints: Some(
            ["topology.kubernetes.io/zone", "kubernetes.io/hostname"].map(|key| spread(key, entry)).to_vec(),
        ),
        volumes: Some(volumes),
        ..core::PodSpec::default()
    }
}

fn container(
    entry: &KubernetesEntry,
    size: &PodSize,
    image: &str,
    mounts: Vec<core::VolumeMount>,
    port: u16,
) -> core::Container {
    let policy = |policy| match policy {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    };
    let conf = format!("{CONF_DIR}/{CONF}");
    core::Container {
        name: CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: entry.image_pull_policy.map(|given| policy(given).to_owned()),
        command: Some([&entry.binary, "-N", "-d", "1", "-f", &conf].map(ToOwned::to_owned).to_vec()),
        working_dir: Some("/".to_owned()),
        ports: Some(vec![core::ContainerPort {
            name: Some("proxy".to_owned()),
            container_port: port.into(),
            protocol: Some("TCP".to_owned()),
            ..core::ContainerPort::default()
        }]),
        readiness_probe: Some(core::Probe {
            tcp_socket: Some(core::TCPSocketAction { port: IntOrString::Int(port.into()), host: None }),
            period_seconds: Some(2),
            timeout_seconds: Some(2),
            failure_threshold: Some(3),
            ..core::Probe::default()
        }),
        resources: Some(resources(size.resources.as_ref().unwrap_or(&entry.resources))),
        security_context: Some(core::SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(core::Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            ..core::SecurityContext::default()
        }),
        // What Squid said before it ended, where its own message is empty.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: Some(mounts),
        ..core::Container::default()
    }
}

fn pod_security(entry: &KubernetesEntry, port: u16) -> core::PodSecurityContext {
    let user = i64::from(entry.run_as_user);
    core::PodSecurityContext {
        // The group of the files that are mounted.
        fs_group: Some(user),
        run_as_group: Some(user),
        run_as_non_root: Some(true),
        run_as_user: Some(user),
        seccomp_profile: Some(core::SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        // One of the sysctls that count as safe, also under `restricted`.
        sysctls: (port < 1024).then(|| {
            vec![core::Sysctl { name: "net.ipv4.ip_unprivileged_port_start".to_owned(), value: port.to_string() }]
        }),
        ..core::PodSecurityContext::default()
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> core::VolumeMount {
    core::VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(read_only),
        ..core::VolumeMount::default()
    }
}

/// Proxies of one entry are for different addresses and should not all go with one node.
fn spread(topology: &str, entry: &KubernetesEntry) -> core::TopologySpreadConstraint {
    let own = [mark::MANAGED_BY, (mark::LABEL_PROVIDER, entry.name.as_str())];
    core::TopologySpreadConstraint {
        max_skew: 1,
        topology_key: topology.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(own.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            match_expressions: None,
        }),
        ..core::TopologySpreadConstraint::default()
    }
}

fn resources(of: &Resources) -> core::ResourceRequirements {
    let amounts = |given: &BTreeMap<&'static str, String>| {
        let each = given.iter().map(|(name, amount)| ((*name).to_owned(), Quantity(amount.clone())));
        (!given.is_empty()).then(|| each.collect())
    };
    core::ResourceRequirements {
        limits: amounts(&of.limits),
        requests: amounts(&of.requests),
        ..core::ResourceRequirements::default()
    }
}

fn toleration(of: &Toleration) -> core::Toleration {
    let operator = match of.operator {
        Operator::Equal => "Equal",
        Operator::Exists => "Exists",
    };
    let effect = of.effect.map(|effect| match effect {
        Effect::NoSchedule => "NoSchedule",
        Effect::PreferNoSchedule => "PreferNoSchedule",
        Effect::NoExecute => "NoExecute",
    });
    core::Toleration {
        key: of.key.clone(),
        operator: Some(operator.to_owned()),
        value: of.value.clone(),
        effect: effect.map(ToOwned::to_owned),
        toleration_seconds: of.toleration_seconds,
    }
}

/// Lets these namespaces in at the proxy's port, and the operator, which probes. Says nothing about the way out.
fn network_policy(
    metadata: ObjectMeta,
    allowed: &[String],
    operator_namespace: Option<&str>,
    port: u16,
) -> net::NetworkPolicy {
    let mut namespaces: Vec<String> = allowed.to_vec();
    namespaces.extend(operator_namespace.map(ToOwned::to_owned));
    namespaces.sort_unstable();
    namespaces.dedup();
    let instance = metadata.labels.as_ref().and_then(|labels| labels.get(mark::LABEL_INSTANCE)).cloned();
    let rule = net::NetworkPolicyIngressRule {
        from: Some(vec![net::NetworkPolicyPeer {
            namespace_selector: Some(LabelSelector {
                match_expressions: Some(vec![LabelSelectorRequirement {
                    key: "kubernetes.io/metadata.name".to_owned(),
                    operator: "In".to_owned(),
                    values: Some(namespaces.clone()),
                }]),
                match_labels: None,
            }),
            ..net::NetworkPolicyPeer::default()
        }]),
        ports: Some(vec![net::NetworkPolicyPort {
            port: Some(IntOrString::Int(port.into())),
            protocol: Some("TCP".to_owned()),
            end_port: None,
        }]),
    };
    net::NetworkPolicy {
        metadata,
        spec: Some(net::NetworkPolicySpec {
            pod_selector: Some(LabelSelector {
                match_labels: instance.map(|instance| BTreeMap::from([(mark::LABEL_INSTANCE.to_owned(), instance)])),
                match_expressions: None,
            }),
            policy_types: Some(vec!["Ingress".to_owned()]),
            // Without a namespace there is no rule: nobody comes in.
            ingress: (!namespaces.is_empty()).then(|| vec![rule]),
            egress: None,
        }),
    }
}

#[cfg(test)]
mod tests;
