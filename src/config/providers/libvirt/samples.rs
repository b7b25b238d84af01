//! The samples for machines: understood by the operator, fitting each other, and no door inside.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use egress_actors::domain::desired::{CloudInit, Flavor as OfProxy, Managed};
use ipnet::IpNet;
use serde_json::Value;

use crate::config::providers::{Entry, load};
use crate::crd::SECRET_LABEL;
use crate::crd::accept::accept;
use crate::crd::proxy::Proxy;
use crate::providers::squid_conf::SquidConf;

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/samples").join(name)
}

fn documents(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(sample(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    text.split("\n---\n").map(|one| serde_saphyr::from_str(one).unwrap_or_else(|why| panic!("{name}: {why}"))).collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &str) -> Vec<&'a Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

/// As the operator takes it.
fn managed(document: &Value) -> Managed {
    let mut object = document.clone();
    object["metadata"]["uid"] = "0f1e".into();
    let proxy: Proxy = serde_json::from_value(object).unwrap_or_else(|error| panic!("{document}: {error}"));
    match accept(&proxy, None).unwrap_or_else(|error| panic!("{document}: {error}")).flavor {
        OfProxy::Managed(managed) => managed,
        OfProxy::External(external) => panic!("{external:?}"),
    }
}

/// What is in a key of a Secret that Proxies may use.
fn secret<'a>(documents: &'a [Value], name: &str, key: &str) -> &'a str {
    let found = of_kind(documents, "Secret").into_iter().find(|secret| secret["metadata"]["name"] == name);
    let secret = found.unwrap_or_else(|| panic!("no Secret {name}"));
    assert_eq!(secret["metadata"]["labels"][SECRET_LABEL], "true", "{name} is used by nobody without its label");
    secret["stringData"][key].as_str().unwrap_or_else(|| panic!("{name} has no {key}"))
}

fn user_data(documents: &[Value], document: &Value) -> String {
    let given = &document["spec"]["managed"]["cloudInit"];
    if let Some(text) = given["inline"].as_str() {
        return text.to_owned();
    }
    let of = &given["secretRef"];
    secret(documents, of["name"].as_str().unwrap(), of["key"].as_str().unwrap()).to_owned()
}

/// The content of a file that cloud-init writes.
fn written(user_data: &str, path: &str) -> Option<String> {
    assert!(user_data.starts_with("#cloud-config\n"), "{user_data}");
    let read: Value = serde_saphyr::from_str(user_data).unwrap_or_else(|error| panic!("{error}: {user_data}"));
    assert_eq!(read["packages"], serde_json::json!(["squid"]));
    let files = read["write_files"].as_array().expect("files are written");
    files.iter().find(|file| file["path"] == path).map(|file| file["content"].as_str().expect("a text").to_owned())
}

/// The networks of all lines `acl refused dst ..`.
fn refused(squid_conf: &str) -> BTreeSet<IpNet> {
    let lines = squid_conf.lines().filter_map(|line| line.strip_prefix("acl refused dst "));
    lines.flat_map(str::split_whitespace).map(|net| net.parse().unwrap_or_else(|_| panic!("{net}"))).collect()
}

#[test]
fn each_proxy_of_the_samples_fits_an_entry_of_the_samples_and_makes_a_closed_squid() {
    let ours = SquidConf {
        about: "a test",
        listen: "127.0.0.1:3128".parse().unwrap(),
        openings: &[],
        auth: None,
        cache_log: Path::new("/dev/null"),
        user: None,
    };
    let inside = refused(&ours.render());
    assert!(inside.len() > 20, "{inside:?}");
    for (name, providers) in [
        ("proxy-kvm.yaml", "providers-kvm.yaml"),
        ("proxy-kvm2.yaml", "providers-kvm2.yaml"),
        ("crawl-pool-kvm2.yaml", "providers-kvm2.yaml"),
    ] {
        let documents = documents(name);
        let entries = load(&sample(providers)).unwrap_or_else(|error| panic!("{error}")).entries;
        let [Entry::Libvirt(entry)] = entries.as_slice() else { panic!("{entries:?}") };
        let proxies = of_kind(&documents, "Proxy");
        assert!(!proxies.is_empty(), "{name}");
        for document in proxies {
            let proxy = managed(document);
            assert_eq!(proxy.provider, entry.name, "{name}");
            assert!(entry.images.contains_key(&*proxy.placement.image.expect("an image is named")), "{name}");
            assert!(entry.sizes.contains_key(&*proxy.placement.size.expect("a size is named")), "{name}");

            let user_data = user_data(&documents, document);
            let squid = written(&user_data, "/etc/squid/squid.conf").expect("a configuration of Squid");
            let has = |line: &str| squid.lines().any(|one| one == line);
            assert!(has(&format!("http_port {}", proxy.port)), "{name}: it listens elsewhere");
            assert_eq!(refused(&squid), inside, "{name}: other networks than in what we generate");
            let rules: Vec<&str> = squid.lines().filter(|line| line.starts_with("http_access ")).collect();
            let closed = rules.iter().position(|line| *line == "http_access deny refused").expect("it is refused");
            assert!(rules[..closed].iter().all(|line| line.starts_with("http_access deny ")), "{name}: {rules:?}");
            assert_eq!(rules.last(), Some(&"http_access deny all"), "{name}");
            assert!(has("cache deny all") && has("forwarded_for delete") && has("via off"), "{name}");

            let Some(credentials) = proxy.credentials else {
                assert!(has("http_access deny !clients"), "{name}: open to everybody");
                continue;
            };
            assert!(has("http_access deny !known"), "{name}: nobody is asked");
            let passwords = written(&user_data, "/etc/squid/passwords").expect("a password file");
            let user = secret(&documents, &credentials.name, "username");
            assert!(passwords.starts_with(&format!("{user}:$6$")), "{name}: {user} is not let in");
            let password = secret(&documents, &credentials.name, "password");
            assert!(!user_data.contains(password), "{name}: the password itself is in the machine");
        }
    }
}

#[test]
fn the_pool_is_four_that_share_a_cloud_init_and_one_of_its_own() {
    let documents = documents("crawl-pool-kvm2.yaml");
    let pool: Vec<Managed> = of_kind(&documents, "Proxy").into_iter().map(managed).collect();
    let shared = pool.iter().filter(|proxy| matches!(proxy.cloud_init, Some(CloudInit::Secret { .. }))).count();
    let inline: Vec<u16> = pool
        .iter()
        .filter(|proxy| matches!(proxy.cloud_init, Some(CloudInit::Inline(_))))
        .map(|proxy| proxy.port)
        .collect();
    assert_eq!((pool.len(), shared, inline), (5, 4, vec![8080]));
}
