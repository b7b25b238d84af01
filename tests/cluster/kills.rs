//! kill -9 at each write of a Proxy's life with the provider `kubernetes`: before the write gets to the API server, and
//! after it is done but before its answer. The next operator adopts what is there: one instance, or none and no leftovers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use tokio::task::JoinHandle;

use crate::gate::{Gate, Kind, Moment};
use crate::kubelet::Kubelet;
use crate::lanes::lanes;
use crate::life::Proxies;
use crate::manifest::managed;
use crate::operator::Operator;
use crate::plane::Plane;
use crate::remains::Remains;
use crate::site::Site;
use crate::squids::OwnSquid;
use crate::within;

/// Lives side by side. Most of their time they wait: after a kill nothing counts as absent before the API server cannot
/// be at the killed operator's last request any more (40 s).
const LANES: usize = 32;

/// Between two looks; so many at once would be half of the work.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// That wait, and all the rest of a life beside so many others.
const LIMIT: Duration = Duration::from_mins(4);

/// Two kinds of writes, two moments, and what comes after.
const VARIANTS: usize = 8;

/// What a life is made of, in this order.
const CREATE: [&str; 5] = ["PATCH proxies", "POST configmaps", "POST secrets", "POST networkpolicies", "POST pods"];
const DELETE: [&str; 5] =
    ["DELETE pods", "DELETE secrets", "DELETE networkpolicies", "DELETE configmaps", "PATCH proxies"];

/// When the operator dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At {
    kind: Kind,
    nth: usize,
    moment: Moment,
}

/// Where Proxies and pods of one life are, and its operators.
struct Life<'p> {
    site: Site,
    gate: Gate,
    namespace: String,
    proxies: Proxies,
    remains: Remains,
    pods: Pods,
    operator_id: String,
    _kubelet: Kubelet,
    _plane: &'p Plane,
}

impl<'p> Life<'p> {
    async fn new(plane: &'p Plane, squid: &OwnSquid) -> Option<Self> {
        let site = Site::new()?;
        let (namespace, pods_in) = (plane.namespace("killed").await, plane.namespace("killed-pods").await);
        let client = plane.client().await;
        let entry = format!(
            "{{name: local, type: kubernetes, namespace: {pods_in}, auth: generated, allowedNamespaces: [{namespace}]}}"
        );
        std::fs::write(site.providers_config(), format!("providers: [{entry}]\n")).unwrap();
        Some(Self {
            gate: Gate::before(plane).await,
            proxies: Proxies::of(plane, &namespace).await,
            pods: Pods::watched(client.clone(), &pods_in),
            remains: Remains::new(client.clone(), &pods_in),
            operator_id: format!("test/{namespace}"),
            _kubelet: Kubelet::sharing(client, &pods_in, squid.port),
            site,
            namespace,
            _plane: plane,
        })
    }

    async fn operator(&self) -> Operator {
        let launch = self.site.operator().in_cluster(&self.gate.kubeconfig);
        let named = ["--proxy-namespace", &self.namespace, "--operator-id", &self.operator_id];
        launch.args(&named).start().await
    }

    /// Begins something, and kills the operator at a write after it. Where it is done before: not killed.
    async fn killed_at(
        &self,
        at: At,
        mut operator: Operator,
        begin: impl AsyncFnOnce(),
        is_done: impl AsyncFn() -> bool,
    ) -> Result<String, Operator> {
        self.gate.arm(operator.pid(), at.kind, at.nth, at.moment);
        begin().await;
        until("it is done, or the operator is dead", async || operator.has_ended() || is_done().await).await;
        let Some(write) = self.gate.disarm() else { return Err(operator) };
        assert_eq!(operator.ended().await.signal, Some(9), "at {write}");
        Ok(write)
    }

    async fn is_ready(&self) -> bool {
        self.proxies.get("px").await.is_some_and(|px| px.status.is_some_and(|s| s.phase.as_deref() == Some("Ready")))
    }

    async fn is_gone(&self) -> bool {
        self.proxies.get("px").await.is_none()
    }

    async fn created_with_a_kill_at(&self, at: At) -> Result<String, Operator> {
        let begin = async || self.proxies.apply(&managed("px").namespace(&self.namespace)).await;
        self.killed_at(at, self.operator().await, begin, async || self.is_ready().await).await
    }

    async fn goes_without_a_trace(&self, at: &str) {
        until(&format!("the object goes after {at}"), async || self.is_gone().await).await;
        assert_eq!(self.remains.all().await, [] as [String; 0], "after {at}");
    }
}

async fn until(claim: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < LIMIT, "not within {LIMIT:?}: {claim}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Every pod of a namespace from its first on, as a watch tells.
struct Pods {
    seen: Arc<Mutex<SeenPods>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct SeenPods {
    now: BTreeSet<String>,
    ever: BTreeSet<String>,
    most: usize,
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pods {
    fn watched(client: Client, namespace: &str) -> Self {
        let pods = Api::<Pod>::namespaced(client, namespace);
        let seen = Arc::<Mutex<SeenPods>>::default();
        let shared = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            // Longer than any life; were it to end, the counts would stand still and the test fail.
            let mut events = Box::pin(pods.watch(&WatchParams::default().timeout(290), "0").await.unwrap());
            while let Some(event) = events.next().await {
                let mut seen = shared.lock().unwrap();
                match event.unwrap() {
                    WatchEvent::Added(pod) => {
                        seen.now.insert(pod.uid().unwrap());
                        seen.ever.insert(pod.uid().unwrap());
                        seen.most = seen.most.max(seen.now.len());
                    }
                    WatchEvent::Deleted(pod) => drop(seen.now.remove(&pod.uid().unwrap())),
                    WatchEvent::Modified(_) | WatchEvent::Bookmark(_) => {}
                    WatchEvent::Error(error) => panic!("{error}"),
                }
            }
        });
        Self { seen, task }
    }

    /// How many there were at most at one time, and how many in all.
    fn counts(&self) -> (usize, usize) {
        let seen = self.seen.lock().unwrap();
        (seen.most, seen.ever.len())
    }
}

/// Kills in a create and goes on with it; then kills in the deletion, and goes on with that.
async fn is_kept(life: &Life<'_>, at: At) -> [Option<String>; 2] {
    let (made_at, operator) = match life.created_with_a_kill_at(at).await {
        Ok(write) => (Some(write), life.operator().await),
        Err(operator) => (None, operator),
    };
    let told = format!("{at:?} of the create, {made_at:?}");
    until(&format!("it is Ready after {told}"), async || life.is_ready().await).await;
    let all = life.remains.all().await;
    let kinds: Vec<&str> = all.iter().filter_map(|what| what.split(' ').next()).collect();
    assert_eq!(kinds, ["Pod", "ConfigMap", "Secret", "NetworkPolicy"], "after {told}: {all:?}");
    within(Duration::from_secs(10), "the watch tells of the pod", async || {
        if life.pods.counts() == (1, 1) { Ok(()) } else { Err(format!("{:?} after {told}", life.pods.counts())) }
    })
    .await;

    let deleted = async || life.proxies.delete("px").await;
    let ended = life.killed_at(at, operator, deleted, async || life.is_gone().await).await;
    let (write, operator) = match ended {
        Ok(write) => (Some(write), life.operator().await),
        Err(operator) => (None, operator),
    };
    life.goes_without_a_trace(&format!("{at:?} of the deletion, {write:?}")).await;
    assert_eq!(life.pods.counts(), (1, 1));
    assert_eq!(operator.terminate().await.code, Some(0));
    [made_at, write]
}

/// Kills in a create, and the object is deleted before the next operator comes.
async fn is_dropped(life: &Life<'_>, at: At) -> Option<String> {
    let write = life.created_with_a_kill_at(at).await.ok()?;
    life.proxies.delete("px").await;
    let operator = life.operator().await;
    life.goes_without_a_trace(&format!("{at:?} of the create, {write}, and a deletion meanwhile")).await;
    assert!(life.pods.counts().1 <= 1);
    assert_eq!(operator.terminate().await.code, Some(0));
    Some(write)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_is_killed_at_any_write_of_a_create_or_a_delete_leaves_one_pod_or_none_and_nothing_else() {
    let begun = Instant::now();
    let plane = Plane::shared().await;
    let Some(squid) = OwnSquid::open() else { return };
    let killed = Mutex::new(BTreeSet::new());
    let lives = lanes(LANES, VARIANTS, async |number| {
        let at = At {
            nth: number / VARIANTS + 1,
            kind: if number % VARIANTS < 4 { Kind::Deed } else { Kind::Word },
            moment: if number % 4 < 2 { Moment::Before } else { Moment::After },
        };
        let Some(life) = Life::new(plane, &squid).await else { return false };
        let writes = if number % 2 == 0 {
            let [create, delete] = is_kept(&life, at).await;
            [("create", create), ("delete", delete)]
        } else {
            [("create of what is deleted then", is_dropped(&life, at).await), ("", None)]
        };
        let mut killed = killed.lock().unwrap();
        let before = killed.len();
        killed.extend(writes.into_iter().filter_map(|(of, write)| Some((of, at, write?))));
        killed.len() > before
    })
    .await;

    let killed = killed.into_inner().unwrap();
    for (of, at, write) in &killed {
        eprintln!("killed in the {of}, {:?} {:?} {}: {write}", at.moment, at.kind, at.nth);
    }
    eprintln!("{} kills in {lives} lives, {:.1?}", killed.len(), begun.elapsed());
    for (of, writes) in [("create", CREATE), ("create of what is deleted then", CREATE), ("delete", DELETE)] {
        for moment in [Moment::Before, Moment::After] {
            let at =
                |kind| killed.iter().filter(move |kill| kill.0 == of && kill.1.kind == kind && kill.1.moment == moment);
            // On a machine that is slow a create may be given up and begun anew, which is more writes than these.
            let deeds: Vec<&str> = at(Kind::Deed).map(|kill| kill.2.as_str()).collect();
            let missed: Vec<_> = writes.iter().filter(|write| !deeds.contains(write)).collect();
            assert!(missed.is_empty(), "not killed in the {of} {moment:?} at {missed:?}, but at {deeds:?}");
            assert!(
                at(Kind::Word).any(|kill| kill.2 == "PATCH proxies/status"),
                "none of the {of} {moment:?} a status"
            );
        }
    }
}
