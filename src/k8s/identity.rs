//! Who we are in the cluster: which pod, in which namespace, under which name.

use std::sync::Arc;

use egress_actors::domain::id::OperatorId;

use super::NAME;
use super::client::ClusterError;

/// As the pod was told by its manifest (`config/manager`), or made up outside of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Our pod; none outside of a cluster.
    pub pod: Option<Pod>,
    /// The namespace of the Lease and of our pod. Empty: that of the kubeconfig or of the ServiceAccount.
    pub namespace: Arc<str>,
    /// The name of the Deployment: of the Lease, and a part of the operator's id.
    pub name: Arc<str>,
    /// Who holds the claim: pod name and uid, the same after a restart of the container.
    pub replica: Arc<str>,
}

/// One of the replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl Identity {
    /// From `EGRESS_OPERATOR_NAME`, `POD_NAME`, `POD_NAMESPACE` and `POD_UID`.
    pub fn from_env() -> Self {
        Self::from(|name| std::env::var(name).ok())
    }

    fn from(env: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name| env(name).filter(|value| !value.is_empty()).map(Arc::<str>::from);
        let pod = given("POD_NAME").zip(given("POD_UID")).map(|(name, uid)| Pod { name, uid });
        let replica = match &pod {
            Some(pod) => format!("{}_{}", pod.name, pod.uid).into(),
            None => format!("{}_{}", given("HOSTNAME").as_deref().unwrap_or("local"), uuid::Uuid::new_v4()).into(),
        };
        Self {
            pod,
            namespace: given("POD_NAMESPACE").unwrap_or_default(),
            name: given("EGRESS_OPERATOR_NAME").unwrap_or_else(|| NAME.into()),
            replica,
        }
    }

    /// The same in this namespace, unless it was told another.
    pub(super) fn in_namespace(self, default: &str) -> Self {
        let namespace = if self.namespace.is_empty() { default.into() } else { self.namespace };
        Self { namespace, ..self }
    }

    /// Stays the same for all replicas and all pods of a Deployment, and is another in another cluster. `proxies`: the
    /// one namespace that is looked at. Outside of a pod it is a part of the id: two operators on one machine have the
    /// same namespace by their kubeconfig, and would fight over what they made.
    pub(super) fn operator_id(&self, cluster: &str, proxies: Option<&str>) -> Result<OperatorId, ClusterError> {
        let mut text = format!("{cluster}.{}.{}", self.namespace, self.name);
        if let (None, Some(proxies)) = (&self.pod, proxies) {
            text.extend([".", proxies]);
        }
        OperatorId::parse(&text).map_err(|error| ClusterError::OperatorId(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_outlives_a_container_and_not_the_pod() {
        let env = |pairs: &'static [(&str, &str)]| {
            move |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
        };
        let pod = Identity::from(env(&[
            ("POD_NAME", "op-7d-x"),
            ("POD_UID", "u1"),
            ("POD_NAMESPACE", "egress"),
            ("EGRESS_OPERATOR_NAME", "op"),
        ]));
        assert_eq!((&*pod.replica, &*pod.namespace, &*pod.name), ("op-7d-x_u1", "egress", "op"));
        assert_eq!(pod.clone().in_namespace("default"), pod);
        for proxies in [None, Some("crawl")] {
            let id = pod.operator_id("0b9f", proxies).unwrap();
            assert_eq!(id.as_str(), "0b9f.egress.op", "no part of it is the pod's");
        }
        let laptop = Identity::from(env(&[("POD_NAME", "only-half"), ("POD_UID", "")]));
        assert_eq!((&laptop.pod, &*laptop.name), (&None, NAME));
        assert_ne!(laptop.replica, Identity::from(env(&[])).replica);
        assert_eq!(&*laptop.in_namespace("crawl").namespace, "crawl");
    }

    #[test]
    fn two_operators_on_one_machine_that_look_at_two_namespaces_are_two() {
        let laptop = Identity::from(|_| None).in_namespace("default");
        let id = |proxies| laptop.operator_id("0b9f", proxies).unwrap().to_string();
        assert_eq!(id(None), format!("0b9f.default.{NAME}"));
        assert_eq!(id(Some("crawl")), format!("0b9f.default.{NAME}.crawl"));
        assert_ne!(id(Some("crawl")), id(Some("other")));
    }
}
