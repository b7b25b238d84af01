//! ProviderHealth objects on the real API server: whose they are, what they tell, and that they are there.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::id::{HostName, ProviderName};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{Condition, ConditionType, Truth};
use egress_actors::domain::target::TargetHealth;
use egress_actors::ports::{Mandate, ProviderHealth, Records};
use egress_operator::crd::provider_health::ProviderHealth as Object;
use egress_operator::crd::{MANAGED_BY, OWNER};
use egress_operator::k8s::NAME;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::eventually;
use crate::operator::Operator;
use crate::plane::Plane;
use crate::records::connect_as;
use crate::site::Site;

/// Names that no other test uses, and the objects of that name.
struct Rig {
    plane: &'static Plane,
    namespace: String,
    all: Api<Object>,
}

impl Rig {
    async fn new(prefix: &str) -> Self {
        let plane = Plane::shared().await;
        let namespace = plane.namespace(prefix).await;
        Self { plane, namespace, all: Api::all(plane.client().await) }
    }

    fn name(&self, name: &str) -> String {
        format!("{name}-{}", self.namespace)
    }

    async fn records(&self, operator: &str) -> Arc<dyn Records> {
        connect_as(self.plane, &self.namespace, operator).await.records()
    }

    async fn find(&self, name: &str) -> Option<Object> {
        self.all.get_opt(name).await.unwrap()
    }

    /// One of ours, in the condition that is asked for.
    async fn told(&self, name: &str, kind: &str) -> Option<(String, String)> {
        let object = self.find(name).await?;
        let condition = object.status?.conditions.into_iter().find(|condition| condition.type_ == kind)?;
        Some((condition.status, condition.reason))
    }

    async fn becomes(&self, name: &str, kind: &str, status: &str, reason: &str) {
        eventually(&format!("{kind} of {name} is {status}"), async || {
            (self.told(name, kind).await? == (status.to_owned(), reason.to_owned())).then_some(())
        })
        .await;
    }
}

fn entry(name: &str) -> ProviderName {
    ProviderName::parse(name).unwrap()
}

/// Three hosts; so many of them are not well.
fn health(name: &str, kind: &'static str, bad: usize, since: SystemTime) -> ProviderHealth {
    let target = |n: usize| TargetHealth {
        name: HostName::parse(&format!("h{n}")).unwrap(),
        trouble: (n < bad).then(|| OpError::permanent(Reason::PoolNotFound, "no pool `fast`")),
        latency: Duration::from_millis(7),
        checked_at: since,
    };
    let (truth, reason) = if bad == 0 { (Truth::True, Reason::Healthy) } else { (Truth::False, Reason::PoolNotFound) };
    let ready = Condition { kind: ConditionType::Ready, truth, reason, message: "as it is".into(), since };
    ProviderHealth { entry: entry(name), kind, conditions: vec![ready], targets: (0..3).map(target).collect() }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000 + seconds)
}

fn since(object: &Object) -> SystemTime {
    object.status.as_ref().unwrap().conditions[0].last_transition_time.0.into()
}

async fn is_ours(records: &Arc<dyn Records>, name: &str) -> Option<bool> {
    let found = records.list_provider_healths().await.unwrap();
    found.into_iter().find(|health| health.entry == entry(name)).map(|health| health.is_ours)
}

#[tokio::test]
async fn a_provider_health_has_columns_and_the_marks_of_its_owner() {
    let rig = Rig::new("ph-columns").await;
    let (name, operator) = (rig.name("kvm"), rig.name("op"));
    let records = rig.records(&operator).await;
    records.write_provider_health(&health(&name, "kvm", 1, at(0)), &Mandate::always()).await.unwrap();
    let rows = |more: &[&str]| {
        let said = rig.plane.kubectl(&[&["get", "ph", &name], more].concat());
        assert!(said.ok, "{said:?}");
        said.out.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let narrow = rows(&[]);
    assert_eq!(narrow[0], ["NAME", "READY", "REASON", "TARGETS", "AGE"]);
    assert_eq!(narrow[1][..4], [&name, "False", "PoolNotFound", "2/3"]);
    let wide = rows(&["-o", "wide"]);
    assert_eq!(wide[0][5..], ["TYPE", "MESSAGE"]);
    assert_eq!(wide[1][5..], ["kvm", "as", "it", "is"]);
    let object = rig.find(&name).await.unwrap();
    assert_eq!(object.metadata.labels.as_ref().unwrap()[MANAGED_BY], NAME);
    assert_eq!(object.metadata.annotations.as_ref().unwrap()[OWNER], operator);
    let status = object.status.unwrap();
    assert_eq!((status.observed_generation, status.conditions[0].observed_generation), (Some(1), Some(1)));
}

#[tokio::test]
async fn a_provider_health_of_a_person_or_of_another_operator_is_never_written_and_never_removed() {
    let rig = Rig::new("ph-foreign").await;
    let (of_a_person, of_another) = (rig.name("person"), rig.name("another"));
    let object: Object = serde_json::from_value(json!({
        "apiVersion": "crawl.example.com/v1alpha1", "kind": "ProviderHealth",
        "metadata": {"name": of_a_person}, "spec": {"type": "kvm"},
    }))
    .unwrap();
    rig.all
        .create(&PostParams { field_manager: Some("a-person".to_owned()), ..PostParams::default() }, &object)
        .await
        .unwrap();
    let (ours, theirs) = (rig.records("op/ours").await, rig.records("op/theirs").await);
    let always = Mandate::always();
    theirs.write_provider_health(&health(&of_another, "kvm", 0, at(0)), &always).await.unwrap();
    assert_eq!(is_ours(&theirs, &of_another).await, Some(true));

    for name in [&of_a_person, &of_another] {
        let before = rig.find(name).await.unwrap();
        assert_eq!(is_ours(&ours, name).await, Some(false));
        for _ in 0..2 {
            let refused = ours.write_provider_health(&health(name, "kvm", 1, at(9)), &always).await.unwrap_err();
            assert_eq!((refused.class, refused.reason), (Class::Permanent, Reason::NameConflict), "{refused}");
            assert!(refused.detail.contains("rename the entry"), "{refused}");
        }
        ours.remove_provider_health(&entry(name), &always).await.unwrap();
        assert_eq!(rig.find(name).await, Some(before));
    }
    // Put there in place of ours, which is known by its version.
    let swapped = rig.name("swapped");
    ours.write_provider_health(&health(&swapped, "kvm", 0, at(0)), &always).await.unwrap();
    rig.all.delete(&swapped, &DeleteParams::default()).await.unwrap();
    theirs.write_provider_health(&health(&swapped, "kvm", 0, at(0)), &always).await.unwrap();
    let before = rig.find(&swapped).await;
    let first = ours.write_provider_health(&health(&swapped, "kvm", 1, at(9)), &always).await.unwrap_err();
    assert_eq!(first.class, Class::Transient, "the version is another one: {first}");
    let second = ours.write_provider_health(&health(&swapped, "kvm", 1, at(9)), &always).await.unwrap_err();
    assert_eq!(second.reason, Reason::NameConflict, "{second}");
    assert_eq!(rig.find(&swapped).await, before);
    // It is freed.
    theirs.remove_provider_health(&entry(&swapped), &always).await.unwrap();
    ours.write_provider_health(&health(&swapped, "kvm", 1, at(9)), &always).await.unwrap();
    assert_eq!(is_ours(&ours, &swapped).await, Some(true));
}

#[tokio::test]
async fn one_of_an_operator_of_before_is_taken_over_with_since_when_it_is_so() {
    let rig = Rig::new("ph-before").await;
    let name = rig.name("kvm");
    // As it was made before there were owners.
    let old = json!({"apiVersion": "crawl.example.com/v1alpha1", "kind": "ProviderHealth",
        "metadata": {"name": name}, "spec": {"type": "kvm"}});
    let (force, ready) = (
        PatchParams::apply(NAME).force(),
        json!([{"type": "Ready", "status": "True", "reason": "Healthy",
        "message": "", "lastTransitionTime": "2026-12-01T00:00:00Z"}]),
    );
    rig.all.patch(&name, &force, &Patch::Apply(&old)).await.unwrap();
    let status = json!({"apiVersion": "crawl.example.com/v1alpha1", "kind": "ProviderHealth",
        "metadata": {"name": name}, "status": {"conditions": ready}});
    rig.all.patch_status(&name, &force, &Patch::Apply(&status)).await.unwrap();
    let written = since(&rig.find(&name).await.unwrap());

    let (ours, theirs) = (rig.records("op/ours").await, rig.records("op/theirs").await);
    assert_eq!(is_ours(&ours, &name).await, Some(true));
    ours.write_provider_health(&health(&name, "kvm", 0, at(99)), &Mandate::always()).await.unwrap();
    let object = rig.find(&name).await.unwrap();
    assert_eq!(object.metadata.annotations.as_ref().unwrap()[OWNER], "op/ours");
    assert_eq!(object.metadata.labels.as_ref().unwrap()[MANAGED_BY], NAME);
    assert_eq!(since(&object), written);
    assert_eq!(is_ours(&theirs, &name).await, Some(false), "who comes first has it");
}

#[tokio::test]
async fn since_when_it_is_so_outlives_a_restart_and_a_deposed_leader_removes_nothing() {
    let rig = Rig::new("ph-since").await;
    let (name, always) = (rig.name("kvm"), Mandate::always());
    let first = rig.records("op/a").await;
    first.write_provider_health(&health(&name, "kvm", 1, at(0)), &always).await.unwrap();
    first.write_provider_health(&health(&name, "kvm", 2, at(10)), &always).await.unwrap();
    assert_eq!(since(&rig.find(&name).await.unwrap()), at(0));
    // A restart, and another type meanwhile.
    let second = rig.records("op/a").await;
    second.write_provider_health(&health(&name, "kvm2", 1, at(20)), &always).await.unwrap();
    let object = rig.find(&name).await.unwrap();
    assert_eq!((since(&object), object.spec.kind.as_str()), (at(0), "kvm2"));
    assert_eq!(object.status.unwrap().observed_generation, Some(2));
    second.write_provider_health(&health(&name, "kvm2", 0, at(30)), &always).await.unwrap();
    assert_eq!(since(&rig.find(&name).await.unwrap()), at(30));

    let gone = Mandate::new(|| false);
    assert_eq!(second.remove_provider_health(&entry(&name), &gone).await.unwrap_err().class, Class::Cancelled);
    assert_eq!(
        second.write_provider_health(&health(&name, "kvm2", 1, at(40)), &gone).await.unwrap_err().class,
        Class::Cancelled
    );
    assert_eq!(since(&rig.find(&name).await.unwrap()), at(30));
    // Removed while it is written: it is made again, in the same call.
    rig.all.delete(&name, &DeleteParams::default()).await.unwrap();
    second.write_provider_health(&health(&name, "kvm2", 0, at(50)), &always).await.unwrap();
    assert_eq!(since(&rig.find(&name).await.unwrap()), at(50));
}

/// Events about this ProviderHealth with this reason: type and note.
async fn events(rig: &Rig, name: &str, reason: &str) -> Vec<(String, String)> {
    let all = Api::<Event>::namespaced(rig.plane.client().await, "default");
    let all = all.list(&ListParams::default()).await.unwrap().items;
    let about = all.into_iter().filter(|event| {
        event.reason.as_deref() == Some(reason)
            && event.regarding.as_ref().is_some_and(|of| of.name.as_deref() == Some(name))
    });
    about.map(|event| (event.type_.unwrap(), event.note.unwrap())).collect()
}

async fn start(rig: &Rig, site: &Site) -> Operator {
    let arguments =
        ["--proxy-namespace", &rig.namespace, "--operator-id", &rig.name("op"), "--provider-check-interval", "1s"];
    site.operator().in_cluster(&rig.plane.kubeconfig()).args(&arguments).start().await
}

fn config(site: &Site, names: &[&str]) -> String {
    let port = *site.squid_ports.start();
    let entries = names
        .iter()
        .zip(port..)
        .map(|(name, port)| format!("  - {{name: {name}, type: process, listen: 127.0.0.1, ports: {port}-{port}}}\n"));
    format!("providers:\n{}", entries.collect::<String>())
}

async fn row(operator: &Operator, name: &str) -> Option<Value> {
    let all = operator.api.admin_json("/admin/providers").await;
    all["providers"].as_array().unwrap().iter().find(|row| row["name"] == name).cloned()
}

#[tokio::test]
async fn the_operator_keeps_its_provider_healths_as_the_config_has_them_whatever_others_do() {
    let rig = Rig::new("ph-life").await;
    let Some(site) = Site::new() else { return };
    let [kept, goes, before, taken] = ["kept", "goes", "before", "taken"].map(|name| rig.name(name));
    // Of an entry that was removed while no operator ran.
    let records = rig.records(&rig.name("op")).await;
    records.write_provider_health(&health(&before, "process", 0, at(0)), &Mandate::always()).await.unwrap();
    rig.records("op/theirs")
        .await
        .write_provider_health(&health(&taken, "process", 0, at(0)), &Mandate::always())
        .await
        .unwrap();
    fs::write(site.providers_config(), config(&site, &[&kept, &goes, &taken])).unwrap();
    let operator = start(&rig, &site).await;
    rig.becomes(&kept, "Ready", "True", "Healthy").await;
    rig.becomes(&goes, "Ready", "True", "Healthy").await;
    rig.becomes(&kept, "ProbeTargetSuspect", "False", "ProbeTargetTrusted").await;
    eventually("the one of before is gone", async || rig.find(&before).await.is_none().then_some(())).await;

    // One that is another's.
    let said = eventually("it is told", async || events(&rig, &taken, "NameConflict").await.pop()).await;
    assert!(said.0 == "Warning" && said.1.contains("rename the entry"), "{said:?}");
    assert!(row(&operator, &taken).await.unwrap()["objectProblem"].as_str().unwrap().contains("rename the entry"));
    assert_eq!(row(&operator, &kept).await.unwrap()["objectProblem"], Value::Null);
    assert_eq!(since(&rig.find(&taken).await.unwrap()), at(0));

    // One that somebody deletes.
    let uid = rig.find(&kept).await.unwrap().metadata.uid;
    rig.all.delete(&kept, &DeleteParams::default()).await.unwrap();
    eventually("it is back", async || {
        rig.find(&kept).await.filter(|found| found.metadata.uid != uid && found.status.is_some())
    })
    .await;

    // One whose entry goes, with its series.
    let up = |name: &str| format!("proxy_operator_provider_target_up{{provider=\"{name}\",target=\"{name}\"}}");
    let is_up = async |name: &str| (operator.api.metric(&up(name)).await == Some(1.0)).then_some(());
    eventually("it is up", async || is_up(&goes).await).await;
    fs::write(site.providers_config(), config(&site, &[&kept, &taken])).unwrap();
    eventually("it is gone", async || rig.find(&goes).await.is_none().then_some(())).await;
    eventually("its series are gone", async || operator.api.metric(&up(&goes)).await.is_none().then_some(())).await;
    let (_, metrics) = operator.api.admin("/metrics").await.unwrap();
    let left: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("proxy_operator_provider_target") && line.contains(&goes))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    eventually("the other is up", async || is_up(&kept).await).await;

    // What is so since before a restart.
    let written = since(&rig.find(&kept).await.unwrap());
    operator.kill().await;
    let killed = Timestamp::now();
    // Times on objects are whole seconds.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let again = start(&rig, &site).await;
    let object = eventually("it is written anew", async || {
        let checked_at = |found: &Object| found.status.as_ref().unwrap().targets[0].checked_at.0;
        rig.find(&kept).await.filter(|found| checked_at(found) > killed)
    })
    .await;
    assert_eq!(since(&object), written);
    assert_eq!(events(&rig, &taken, "NameConflict").await.len(), 2, "once for each operator");
    assert!(rig.find(&taken).await.is_some());
    assert_eq!(again.terminate().await.code, Some(0));
}

#[tokio::test]
async fn a_bad_providers_config_is_a_condition_and_an_event_on_every_provider_health_until_it_is_good() {
    let rig = Rig::new("ph-config").await;
    let Some(site) = Site::new() else { return };
    let names = ["a", "b"].map(|name| rig.name(name));
    let good = config(&site, &[&names[0], &names[1]]);
    fs::write(site.providers_config(), &good).unwrap();
    let operator = start(&rig, &site).await;
    for name in &names {
        rig.becomes(name, "ConfigAccepted", "True", "ConfigAccepted").await;
    }
    let accepted = async || operator.api.admin_json("/admin/providers").await["config"].clone();
    assert_eq!(accepted().await["accepted"], true);

    fs::write(site.providers_config(), good.replace("listen:", "colour: blue, listen:")).unwrap();
    for name in &names {
        rig.becomes(name, "ConfigAccepted", "False", "ConfigInvalid").await;
        let object = rig.find(name).await.unwrap();
        let conditions = object.status.unwrap().conditions;
        let of = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind).unwrap();
        for words in ["providers.yaml:2:", "colour", "the one before goes on", "correct the file"] {
            assert!(of("ConfigAccepted").message.contains(words), "{}", of("ConfigAccepted").message);
        }
        assert_eq!(of("Ready").status, "True", "the one before goes on");
        let said = eventually("it is told", async || events(&rig, name, "ConfigInvalid").await.pop()).await;
        assert!(said.0 == "Warning" && said.1.contains("providers.yaml:2:"), "{said:?}");
        // Where people look for it.
        let described = rig.plane.kubectl(&["describe", "providerhealth", name]);
        let events = described.out.split_once("\nEvents:").unwrap_or_else(|| panic!("{described:?}")).1;
        assert!(events.contains("ConfigInvalid"), "{described:?}");
    }
    let told = accepted().await;
    assert!(told["accepted"] == false && told["message"].as_str().unwrap().contains("providers.yaml:2:"), "{told}");

    // Corrected, and one entry is another one: its actor begins anew.
    fs::write(site.providers_config(), good.replacen("listen:", "auth: none, listen:", 1)).unwrap();
    for name in &names {
        rig.becomes(name, "ConfigAccepted", "True", "ConfigAccepted").await;
        let said = eventually("it is told", async || events(&rig, name, "ConfigAccepted").await.pop()).await;
        assert_eq!(said.0, "Normal");
        assert_eq!(events(&rig, name, "ConfigInvalid").await.len(), 1, "once for each transition");
    }
    assert_eq!(accepted().await["accepted"], true);
    assert_eq!(operator.terminate().await.code, Some(0));
}
