//! A kubelet of a kind: runs the Squid of each pod of a namespace as a process here, on a loopback address of its own,
//! with the files that the pod mounts; and tells the API server what a kubelet would.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Volume};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::program;

/// Ends with its test, and its Squids with it.
pub(crate) struct Kubelet(JoinHandle<()>);

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Kubelet {
    pub(crate) fn of(client: Client, namespace: &str) -> Self {
        let namespace = namespace.to_owned();
        Self(tokio::spawn(async move {
            let mut running = HashMap::new();
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                turn(&client, &namespace, &mut running).await;
            }
        }))
    }
}

struct Running {
    address: Ipv4Addr,
    squid: Child,
    _files: TempDir,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.squid.kill();
        let _reaped = self.squid.wait();
    }
}

async fn turn(client: &Client, namespace: &str, running: &mut HashMap<String, Running>) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let Ok(list) = pods.list(&ListParams::default()).await else { return };
    let living: Vec<String> = list.items.iter().filter_map(ResourceExt::uid).collect();
    running.retain(|uid, _| living.contains(uid));
    for pod in list.items {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap());
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
        } else if let Some(started) = start(client, namespace, &pod).await {
            running.insert(uid, started);
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

/// Nothing is left out of what the pod mounts; a file that is not there yet is waited for, as a kubelet does.
async fn start(client: &Client, namespace: &str, pod: &Pod) -> Option<Running> {
    static ADDRESS: AtomicU32 = AtomicU32::new(0x7f0a_0001);
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
    let address = Ipv4Addr::from(ADDRESS.fetch_add(1, Ordering::Relaxed));
    let conf = conf.replace(&format!("http_port {}", port(pod)), &format!("http_port {address}:{}", port(pod)));
    let file = files.path().join("squid.conf");
    fs::write(&file, conf).unwrap();
    let squid = run(&file);
    Some(Running { address, squid, _files: files })
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
        .args(["-N", "-d", "1", "-f"])
        .arg(conf)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
