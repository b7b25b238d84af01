//! Secrets, read when they are used. Only labelled ones: whoever may make a Proxy must not read any Secret by it.

use std::fmt;

use async_trait::async_trait;
use egress_actors::domain::desired::{CloudInit, SecretRef};
use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::instance::{Credentials, SecretBytes};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Secrets;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::failure;
use crate::crd::SECRET_LABEL;
use crate::crd::secret::{self, Values};

#[derive(Clone)]
pub(super) struct ClusterSecrets(Client);

impl fmt::Debug for ClusterSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecrets")
    }
}

impl ClusterSecrets {
    pub(super) fn new(client: Client) -> Self {
        Self(client)
    }

    async fn labelled(&self, namespace: &str, name: &str) -> Result<Values, OpError> {
        let secrets: Api<Secret> = Api::namespaced(self.0.clone(), namespace);
        let found = failure::call(format!("read Secret {namespace}/{name}"), secrets.get(name)).await;
        let found = found.map_err(|error| match error.class {
            Class::NotFound => {
                let detail =
                    format!("there is no Secret `{namespace}/{name}`: make one, labelled {SECRET_LABEL}: \"true\"");
                OpError::transient(Reason::SecretNotFound, detail)
            }
            _ => error,
        })?;
        let labels = found.metadata.labels.unwrap_or_default();
        if labels.get(SECRET_LABEL).is_none_or(|value| value != "true") {
            return Err(secret::not_labelled(format_args!("{namespace}/{name}")));
        }
        let data = found.data.unwrap_or_default();
        Ok(data.into_iter().map(|(key, value)| (key, SecretBytes(value.0.into()))).collect())
    }
}

#[async_trait]
impl Secrets for ClusterSecrets {
    async fn credentials(&self, namespace: &str, named: &SecretRef) -> Result<Credentials, OpError> {
        let values = self.labelled(namespace, &named.name).await?;
        secret::credentials(&values, &format!("{namespace}/{}", named.name))
    }

    async fn user_data(&self, namespace: &str, cloud_init: &CloudInit) -> Result<SecretBytes, OpError> {
        match cloud_init {
            CloudInit::Inline(text) => Ok(SecretBytes(text.as_bytes().into())),
            CloudInit::Secret { name, key } => {
                let values = self.labelled(namespace, name).await?;
                Ok(secret::value(&values, &format!("{namespace}/{name}"), key)?.clone())
            }
        }
    }
}
