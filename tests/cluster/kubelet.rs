//! A kubelet of a kind: runs the Squid of each pod of a namespace as a process here, on a loopback address of its own,
//! with the files that the pod mounts; and tells the API server what a kubelet would.
//!
//! Where hundreds of pods come and go, one Squid serves them all ([`Kubelet::sharing`]): each pod still has an address
//! of its own, which answers from when the pod runs until it ends.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Volume};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::program;
use crate::squids::service_name;

/// Pods of Proxies with such a name find no node.
pub(crate) const UNSCHEDULED: &str = "unscheduled-";

/// Ends with its test, and its Squids with it.
pub(crate) struct Kubelet(JoinHandle<()>);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubelet {
    /// A Squid for each pod.
    pub(crate) fn of(client: Client, namespace: &str) -> Self {
        Self::new(client, namespace, None)
    }

    /// One Squid, which listens on this port of 127.0.0.1 and asks for no password, behind the addresses of all pods.
    pub(crate) fn sharing(client: Client, namespace: &str, squid: u16) -> Self {
        Self::new(client, namespace, Some(squid))
    }

    fn new(client: Client, namespace: &str, shared: Option<u16>) -> Self {
        let namespace = namespace.to_owned();
        Self(tokio::spawn(async move {
            let mut running = HashMap::new();
            let mut took = Duration::ZERO;
            loop {
                // Never more than a part of the machine, however many pods there are.
                tokio::time::sleep(took.max(Duration::from_millis(50))).await;
                let begun = Instant::now();
                turn(&client, &namespace, shared, &mut running).await;
                took = begun.elapsed();
            }
        }))
    }
}

struct Running {
    address: Ipv4Addr,
    _content: Content,
}

enum Content {
    Own {
        squid: Child,
        _files: TempDir,
    },
    /// Carries connections to the Squid that all share.
    Shared(JoinHandle<()>),
}

impl Drop for Content {
    fn drop(&mut self) {
        match self {
            Self::Own { squid, .. } => {
                let _gone = squid.kill();
                let _reaped = squid.wait();
            }
            Self::Shared(carrier) => carrier.abort(),
        }
    }
}

/// No other pod of this test process has it, and hardly one of another process.
fn address() -> Ipv4Addr {
    static ADDRESS: AtomicU32 = AtomicU32::new(1);
    let block = 10 + std::process::id() % 200;
    Ipv4Addr::from(0x7f00_0000 | (block << 16) | ADDRESS.fetch_add(1, Ordering::Relaxed))
}

async fn turn(client: &Client, namespace: &str, shared: Option<u16>, running: &mut HashMap<String, Running>) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let Ok(list) = pods.list(&ListParams::default()).await else { return };
    let living: Vec<String> = list.items.iter().filter_map(ResourceExt::uid).collect();
    running.retain(|uid, _| living.contains(uid));
    for pod in list.items {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap());
        if name.starts_with(UNSCHEDULED) {
            continue;
        }
        if pod.metadata.deletion_timestamp.is_some() {
            running.remove(&uid);
            let _gone = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
        } else if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) {
            bind(&pods, &name).await;
        } else if let Some(Running { address, .. }) = running.get(&uid) {
            let untold = pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none());
            if untold && TcpStream::connect(SocketAddr::from((*address, port(&pod)))).is_ok() {
                tell(&pods, &name, *address).await;
            }
        } else {
            let started = match shared {
                Some(squid) => share(squid, port(&pod)).await,
                None => start(client, namespace, &pod).await,
            };
            running.extend(started.map(|started| (uid, started)));
        }
    }
}

async fn bind(pods: &Api<Pod>, name: &str) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    });
    let _bound: Result<Value, _> = pods.create_subresource("binding", name, &PostParams::default(), &binding).await;
}

async fn tell(pods: &Api<Pod>, name: &str, address: Ipv4Addr) {
    let status = json!({"status": {
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "squid", "image": "squid", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {}}, "lastState": {}
        }]
    }});
    let _told = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
}

fn port(pod: &Pod) -> u16 {
    let ports = pod.spec.as_ref().unwrap().containers[0].ports.as_ref().unwrap();
    u16::try_from(ports[0].container_port).unwrap()
}

async fn share(squid: u16, port: u16) -> Option<Running> {
    let address = address();
    let listener = TcpListener::bind((address, port)).await.ok()?;
    let carrier = tokio::spawn(async move {
        // What it carries ends with it.
        let mut carried = tokio::task::JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            while carried.try_join_next().is_some() {}
            carried.spawn(async move {
                if let Ok(mut far) = tokio::net::TcpStream::connect(("127.0.0.1", squid)).await {
                    let _ended = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    });
    Some(Running { address, _content: Content::Shared(carrier) })
}

/// Nothing is left out of what the pod mounts; a file that is not there yet is waited for, as a kubelet does.
async fn start(client: &Client, namespace: &str, pod: &Pod) -> Option<Running> {
    let spec = pod.spec.as_ref().unwrap();
    let files = tempfile::tempdir().unwrap();
    fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let container = &spec.containers[0];
    let mut conf = String::new();
    let mut moved = Vec::new();
    for volume in spec.volumes.iter().flatten().filter(|volume| volume.empty_dir.is_none()) {
        let mounted = container.volume_mounts.iter().flatten().find(|mount| mount.name == volume.name).unwrap();
        let here = files.path().join(&volume.name);
        fs::create_dir(&here).unwrap();
        for (name, content) in contents(client, namespace, volume).await? {
            if name == "squid.conf" {
                conf = String::from_utf8(content).unwrap();
            } else {
                fs::write(here.join(&name), content).unwrap();
            }
        }
        moved.push((format!("{}/", mounted.mount_path), format!("{}/", here.display())));
    }
    for (path, here) in &moved {
        conf = conf.replace(path, here);
    }
    let address = address();
    let conf = conf.replace(&format!("http_port {}", port(pod)), &format!("http_port {address}:{}", port(pod)));
    let file = files.path().join("squid.conf");
    fs::write(&file, conf).unwrap();
    let squid = run(&file);
    Some(Running { address, _content: Content::Own { squid, _files: files } })
}

async fn contents(client: &Client, namespace: &str, volume: &Volume) -> Option<Vec<(String, Vec<u8>)>> {
    if let Some(map) = &volume.config_map {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let map = maps.get_opt(&map.name).await.ok()??;
        return Some(map.data?.into_iter().map(|(name, text)| (name, text.into_bytes())).collect());
    }
    if let Some(secret) = &volume.secret {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let secret = secrets.get_opt(secret.secret_name.as_ref()?).await.ok()??;
        return Some(secret.data?.into_iter().map(|(name, value)| (name, value.0)).collect());
    }
    panic!("volume {} is of no kind that we know", volume.name)
}

fn run(conf: &Path) -> Child {
    Command::new(program("squid").unwrap())
        .args(["-N", "-d", "1", "-n", &service_name(conf), "-f"])
        .arg(conf)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
