//! Check: may the operator do its work in the namespace, and would a pod of this entry be taken there?
//!
//! Three calls. One asks for all our rights at once; one lists a pod; the last tries a create without storing it, so that a
//! missing namespace, a full quota, a policy of the cluster and an invalid entry show before a Proxy needs them.

use egress_actors::domain::desired::Placement;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProxyKey, Uid};
use egress_actors::domain::instance::{InstanceSpec, OwnerMark};
use egress_actors::domain::reason::Reason;
use k8s_openapi::api::authorization::v1::{ResourceRule, SelfSubjectRulesReview, SelfSubjectRulesReviewSpec};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};

use super::Site;
use super::calls::{Calls, Effect, limited};
use super::manifest::Manifest;

/// Everything that the other calls do.
const NEEDED: [(&str, &str, &[&str]); 4] = [
    ("", "pods", &["get", "list", "create", "delete"]),
    ("", "configmaps", &["get", "list", "create", "update", "delete"]),
    ("", "secrets", &["get", "list", "create", "update", "delete"]),
    ("networking.k8s.io", "networkpolicies", &["get", "create", "update", "delete"]),
];

pub(super) async fn check(site: &Site) -> Result<(), OpError> {
    let calls = Calls::of(site).await?;
    rights(site, &calls).await?;
    calls.try_list::<Pod>().await?;
    let sample = Manifest::of(&site.entry, &site.openings, site.cluster.operator_namespace(), &sample(site))?;
    calls.try_create(&sample.pod).await
}

async fn rights(site: &Site, calls: &Calls<'_>) -> Result<(), OpError> {
    let namespace = &site.entry.namespace;
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec { namespace: Some(namespace.clone()) },
        ..SelfSubjectRulesReview::default()
    };
    let doing = format!("ask for the operator's rights in namespace `{namespace}`");
    let reviews = Api::<SelfSubjectRulesReview>::all(calls.client());
    let answer = match limited(&doing, Effect::None, reviews.create(&PostParams::default(), &review)).await {
        Ok(answer) => answer.status.unwrap_or_default(),
        // Even to ask is a right, which most have. Without it the calls themselves will tell.
        Err(error) if error.reason == Reason::Forbidden => return Ok(()),
        Err(error) => return Err(error),
    };
    if answer.incomplete {
        return Ok(());
    }
    let missing = missing(&answer.resource_rules);
    if missing.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "the operator may not {} in namespace `{namespace}`: grant it with a Role and a RoleBinding there",
        missing.join(", nor ")
    );
    Err(OpError::transient(Reason::Forbidden, detail))
}

/// `delete and list pods`, for each resource.
fn missing(rules: &[ResourceRule]) -> Vec<String> {
    let has =
        |given: Option<&Vec<String>>, wanted: &str| given.is_some_and(|g| g.iter().any(|x| x == wanted || x == "*"));
    let may = |group: &str, resource: &str, verb: &str| {
        rules.iter().any(|rule| {
            has(rule.api_groups.as_ref(), group)
                && has(rule.resources.as_ref(), resource)
                && has(Some(&rule.verbs), verb)
                && rule.resource_names.as_ref().is_none_or(Vec::is_empty)
        })
    };
    NEEDED
        .iter()
        .filter_map(|(group, resource, verbs)| {
            let lacking: Vec<_> = verbs.iter().copied().filter(|verb| !may(group, resource, verb)).collect();
            (!lacking.is_empty()).then(|| format!("{} {resource}", lacking.join("/")))
        })
        .collect()
}

/// What a Proxy without any wishes would get.
fn sample(site: &Site) -> InstanceSpec {
    let mark = OwnerMark {
        operator: OperatorId::parse("check").expect("a valid id"),
        entry: site.entry.name.clone(),
        key: ProxyKey::new("check", "check").expect("a valid key"),
        uid: Uid::parse("check").expect("a valid uid"),
    };
    InstanceSpec { mark, placement: Placement::default(), user_data: None, port: 3128, credentials: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> ResourceRule {
        let owned = |given: &[&str]| given.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        ResourceRule {
            api_groups: Some(owned(groups)),
            resources: Some(owned(resources)),
            verbs: owned(verbs),
            resource_names: Some(owned(names)),
        }
    }

    #[test]
    fn what_is_missing_is_named_by_verb_and_resource() {
        assert_eq!(missing(&[rule(&["*"], &["*"], &["*"], &[])]), Vec::<String>::new());
        let all = ["get", "list", "create", "update", "delete"];
        let core = rule(&[""], &["pods", "configmaps", "secrets"], &all, &[]);
        let policies = rule(&["networking.k8s.io"], &["networkpolicies"], &all, &[]);
        assert_eq!(missing(&[core.clone(), policies.clone()]), Vec::<String>::new());
        assert_eq!(missing(std::slice::from_ref(&core)), ["get/create/update/delete networkpolicies"]);
        let read_only = rule(&[""], &["pods", "configmaps", "secrets"], &["get", "list"], &[]);
        assert_eq!(
            missing(&[read_only, policies.clone()]),
            ["create/delete pods", "create/update/delete configmaps", "create/update/delete secrets"]
        );
        let one_name = rule(&[""], &["pods"], &all, &["px-1"]);
        let others = rule(&[""], &["configmaps", "secrets"], &all, &[]);
        assert_eq!(missing(&[one_name, others, policies]), ["get/list/create/delete pods"]);
    }
}
