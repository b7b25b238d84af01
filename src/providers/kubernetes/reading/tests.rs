use std::sync::Arc;

use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::config::providers::{self, Entry};

fn entry() -> KubernetesEntry {
    let text = "providers: [{name: pods, type: kubernetes, namespace: crawl-proxies}]";
    match providers::parse(std::path::Path::new("p.yaml"), text.as_bytes()).expect("valid").entries.remove(0) {
        Entry::Kubernetes(entry) => *entry,
        other @ (Entry::Process(_) | Entry::Libvirt(_)) => panic!("{other:?}"),
    }
}

fn read(pod: &Pod, generated: Option<Credentials>) -> Instance {
    instance(pod, &entry(), &Current::of(&entry(), &[]), generated)
}

/// A pod of ours that asks for nothing, with this status.
fn pod(status: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {
            "name": "px-1-abc", "uid": "pod-uid", "creationTimestamp": "2026-12-02T07:00:00Z",
            "annotations": {"crawl.example.com/credentials": "none"}
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "squid", "ports": [{"containerPort": 3128}]}]},
        "status": status
    }))
    .expect("a pod")
}

fn container(ready: bool, state: &Value, last: &Value) -> Value {
    json!([{"name": "squid", "image": "squid:6", "imageID": "", "ready": ready, "restartCount": 3, "state": state, "lastState": last}])
}

fn running() -> Value {
    json!({"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": container(true, &json!({"running": {}}), &json!({}))})
}

fn waiting(reason: &str, message: &str, last: &Value) -> Value {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    json!({"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": container(false, &state, last)})
}

fn terminated(code: i32, reason: &str, message: &str) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason, "message": message}})
}

/// What happens, the status, and what is read of it.
type Row = (&'static str, Value, InstanceState, Option<(Reason, &'static str)>);

fn with(mut status: Value, condition: &Value) -> Value {
    status["conditions"] = json!([condition]);
    status
}

#[test]
fn each_status_has_its_state_and_its_words() {
    use InstanceState::{Running, Starting, Stopped, Unknown};
    use Reason as R;
    let none = json!({});
    let log = "2026/12/02 07:20:14| Processing: x\n2026/12/02 07:20:14| FATAL: Bungled squid.conf line 8: acl x\nMaximum Resident Size: 54528 KB\n";
    let said = "FATAL: Bungled squid.conf line 8: acl x";
    let unschedulable = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: 3 Insufficient cpu."});
    let rows: Vec<Row> = vec![
        ("just made", none.clone(), Starting, None),
        ("not scheduled yet", json!({"phase": "Pending"}), Starting, None),
        (
            "no node",
            with(json!({"phase": "Pending"}), &unschedulable),
            Starting,
            Some((R::Unschedulable, "0/3 nodes are available: 3 Insufficient cpu")),
        ),
        ("making it", waiting("ContainerCreating", "", &none), Starting, None),
        (
            "no image",
            waiting("ErrImagePull", "manifest unknown", &none),
            Starting,
            Some((R::ImagePullFailed, "image `squid:6`: ErrImagePull: manifest unknown")),
        ),
        (
            "still no image",
            waiting("ImagePullBackOff", "Back-off pulling image", &none),
            Starting,
            Some((R::ImagePullFailed, "ImagePullBackOff: Back-off pulling image")),
        ),
        (
            "no such image at all",
            waiting("InvalidImageName", "bad", &none),
            Starting,
            Some((R::ImagePullFailed, "InvalidImageName")),
        ),
        (
            "not startable",
            waiting("CreateContainerConfigError", "secret \"a\" not found", &none),
            Starting,
            Some((R::ConfigInvalid, "secret \"a\" not found")),
        ),
        (
            "crash loop",
            waiting("CrashLoopBackOff", "back-off 5m0s restarting", &terminated(1, "Error", log)),
            Starting,
            Some((R::CrashLooping, "squid ended with exit code 1: FATAL: Bungled")),
        ),
        (
            "crash loop, silent",
            waiting("CrashLoopBackOff", "", &terminated(139, "Error", "")),
            Starting,
            Some((R::CrashLooping, "exit code 139: it says nothing")),
        ),
        (
            "out of memory",
            waiting("CrashLoopBackOff", "", &terminated(137, "OOMKilled", "")),
            Starting,
            Some((R::OOMKilled, "limits.memory")),
        ),
        (
            "no binary",
            waiting("CrashLoopBackOff", "", &terminated(128, "StartError", "exec: no such file")),
            Starting,
            Some((R::ConfigInvalid, "exec: no such file")),
        ),
        (
            "between starts",
            json!({"phase": "Running", "containerStatuses": container(false, &terminated(1, "Error", log), &none)}),
            Starting,
            Some((R::CrashLooping, said)),
        ),
        (
            "started, not ready",
            json!({"phase": "Running", "podIP": "10.1.2.3", "containerStatuses": container(false, &json!({"running": {}}), &none)}),
            Starting,
            None,
        ),
        (
            "started again, not ready",
            json!({"phase": "Running", "containerStatuses": container(false, &json!({"running": {}}), &terminated(1, "Error", log))}),
            Starting,
            Some((R::CrashLooping, said)),
        ),
        ("well", running(), Running, None),
        (
            "well, and its node silent",
            with(running(), &json!({"type": "Ready", "status": "False"})),
            Running,
            Some((R::NodeLost, "node `n1`")),
        ),
        ("unknown", json!({"phase": "Unknown"}), Unknown, Some((R::NodeLost, "node `n1`"))),
        (
            "evicted",
            json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
            Stopped,
            Some((R::Evicted, "The node was low on resource: memory")),
        ),
        (
            "node lost",
            json!({"phase": "Failed", "reason": "NodeLost", "message": "gone"}),
            Stopped,
            Some((R::NodeLost, "gone")),
        ),
        (
            "not admitted",
            json!({"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu"}),
            Stopped,
            Some((R::Unschedulable, "no cpu")),
        ),
        (
            "node shut down",
            json!({"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown."}),
            Stopped,
            Some((R::Evicted, "imminent node shutdown")),
        ),
        (
            "collected",
            with(
                json!({"phase": "Failed"}),
                &json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "node is gone"}),
            ),
            Stopped,
            Some((R::NodeLost, "node is gone")),
        ),
        (
            "failed",
            json!({"phase": "Failed", "containerStatuses": container(false, &terminated(1, "Error", log), &none)}),
            Stopped,
            Some((R::CrashLooping, said)),
        ),
        ("failed, silent", json!({"phase": "Failed"}), Stopped, Some((R::InstanceStopped, "no more is said"))),
        ("ended", json!({"phase": "Succeeded"}), Stopped, Some((R::InstanceStopped, "nobody asked"))),
    ];
    for (name, status, state, complaint) in rows {
        let told = read(&pod(&status), None);
        assert_eq!(told.state, state, "{name}");
        let said = told.complaint.as_ref().map(|c| (c.reason, &*c.detail));
        match (said, complaint) {
            (None, None) => {}
            (Some((is, words)), Some((reason, part))) => {
                assert!(is == reason && words.contains(part), "{name}: {is}: {words}");
                assert!(!words.ends_with('.'), "{name}: {words}");
            }
            (said, wanted) => panic!("{name}: {said:?}, not {wanted:?}"),
        }
        assert_eq!(told.endpoint.is_some(), state == Running, "{name}");
    }
}

#[test]
fn the_words_do_not_change_with_each_restart() {
    let at = |count: i64, back_off: &str| {
        let mut status = waiting("CrashLoopBackOff", back_off, &terminated(1, "Error", "FATAL: x"));
        status["containerStatuses"][0]["restartCount"] = json!(count);
        read(&pod(&status), None).complaint
    };
    assert_eq!(at(1, "back-off 10s restarting"), at(7, "back-off 5m0s restarting"));
}

#[test]
fn a_pod_that_goes_is_deleting_and_says_who_takes_it() {
    let mut leaving = pod(&with(
        running(),
        &json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}),
    ));
    leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
    let told = read(&leaving, None);
    assert_eq!((told.state, &told.endpoint), (InstanceState::Deleting, &None));
    assert_eq!(told.complaint.expect("words").reason, Reason::Evicted);
}

#[test]
fn the_address_is_the_pods_of_either_family_and_nothing_else() {
    for (ip, url) in
        [("10.1.2.3", Some("http://10.1.2.3:3128")), ("fd00::7", Some("http://[fd00::7]:3128")), ("evil.example", None)]
    {
        let mut status = running();
        status["podIP"] = json!(ip);
        let told = read(&pod(&status), None);
        assert_eq!(told.endpoint.map(|endpoint| endpoint.to_string()).as_deref(), url);
    }
}

#[test]
fn a_pod_that_takes_anothers_name_is_another_instance() {
    let first = read(&pod(&running()), None);
    assert_eq!(&*first.provider_id, "kubernetes://pods/pods/crawl-proxies/px-1-abc/pod-uid");
    let mut second = pod(&running());
    second.metadata.uid = Some("pod-uid-2".to_owned());
    assert_ne!(read(&second, None).provider_id, first.provider_id);
    assert!(first.created_at.is_some());
}

#[test]
fn without_its_generated_credentials_an_instance_is_of_no_use() {
    let mut asks = pod(&running());
    let notes = asks.metadata.annotations.as_mut().expect("annotations");
    notes.insert("crawl.example.com/credentials".to_owned(), "generated".to_owned());
    let told = read(&asks, None);
    assert_eq!((told.state, told.complaint.expect("words").reason), (InstanceState::Stopped, Reason::SecretNotFound));
    let credentials = Credentials { username: "u".into(), password: Arc::new(SecretString::from("p")) };
    let told = read(&asks, Some(credentials.clone()));
    assert_eq!((told.state, told.generated), (InstanceState::Running, Some(credentials.clone())));
    // What it does not ask for is not handed out.
    assert_eq!(read(&pod(&running()), Some(credentials)).generated, None);
}
