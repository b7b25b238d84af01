//! What is decided before a host is touched. The one here has an address at which nobody is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::desired::Placement;
use egress_actors::domain::error::Class;
use egress_actors::domain::id::{ProxyKey, Uid};
use egress_actors::domain::instance::{InstanceSpec, OwnerMark, SecretBytes};
use egress_actors::domain::reason::Reason;

use super::images::flights::{Bounds, Flights, NoMeter};
use super::images::source::{Resolve, Source};
use super::*;
use crate::config::providers::{self, Entry};

struct NoNames;

#[async_trait]
impl Resolve for NoNames {
    async fn look_up(&self, host: &str, _: Duration) -> Result<Vec<IpAddr>, String> {
        Err(format!("{host} is asked for"))
    }
}

/// `more` are fields of the entry.
fn backend(more: &str) -> LibvirtBackend {
    let text = format!(
        "providers: [{{name: home, type: kvm, ssh: {{user: u, keyFile: /none, knownHostsFile: /none}}, \
         hosts: [{{name: a, address: 192.0.2.1}}], {more}}}]"
    );
    let loaded = providers::parse(Path::new("providers.yaml"), text.as_bytes()).expect("read");
    let Some(Entry::Libvirt(entry)) = loaded.entries.into_iter().next() else { panic!("no entry of libvirt") };
    let runtime = Handle::current();
    let flights = Flights::new(runtime.clone(), Bounds::default(), Arc::new(NoMeter));
    let images = Arc::new(Images::new(Source::new(Arc::new(NoNames), &[]), flights));
    let means = Means { dns: Dns::system(), images, main: runtime.clone(), bulk: runtime };
    let material = Arc::new(MaterialFiles::new("/none".into(), "/none".into()));
    LibvirtBackend::new(Arc::new((*entry).clone()), &entry.hosts[0], material, means, Limits::default())
}

fn spec(image: Option<&str>, size: Option<&str>, user_data: Option<&str>) -> InstanceSpec {
    InstanceSpec {
        mark: OwnerMark {
            operator: OperatorId::parse("op").expect("an id"),
            entry: ProviderName::parse("home").expect("a name"),
            key: ProxyKey::new("crawl", "p").expect("a key"),
            uid: Uid::parse("0b9d8f3a-0000-4000-8000-000000000001").expect("a uid"),
        },
        placement: Placement { zone: None, image: image.map(Into::into), size: size.map(Into::into) },
        user_data: user_data.map(|text| SecretBytes(text.as_bytes().into())),
        port: 3128,
        credentials: None,
    }
}

const SIZES: &str = "sizes: {small: {cpus: 1, memory: 1Gi, disk: 10Gi}, large: {cpus: 4, memory: 4Gi, disk: 20Gi}}";
const ONE: &str = "images: {plain: {url: \"http://x/a\"}}";
const TWO: &str = "images: {plain: {url: \"http://x/a\"}, ready: {url: \"http://x/b\", proxy: true}}";
const ALLOWED: &str = "allowImageURLs: [\"https://images.example.com/debian/\"]";

fn sized(entry: &str) -> String {
    [entry, SIZES].join(", ")
}

/// C7, C14.
#[tokio::test]
async fn what_cannot_be_given_is_permanent_names_its_field_and_touches_no_host() {
    let data = Some("#cloud-config\n");
    for (entry, wanted, reason, words) in [
        (TWO, spec(None, None, data), Reason::SpecInvalid, &["`placement.image`", "home", "plain, ready"][..]),
        (TWO, spec(Some("other"), None, data), Reason::SpecInvalid, &["`placement.image`", "`other`", "plain, ready"]),
        (
            TWO,
            spec(Some("plain"), Some("huge"), data),
            Reason::SpecInvalid,
            &["`placement.size`", "`huge`", "large, small"],
        ),
        (ONE, spec(None, None, data), Reason::SpecInvalid, &["`placement.size` is missing", "home", "large, small"]),
        (TWO, spec(Some("https://["), None, data), Reason::SpecInvalid, &["`placement.image`", "no URL"]),
        (TWO, spec(Some("https://images.example.com/debian/x"), None, data), Reason::Forbidden, &["allowImageURLs"]),
        (ALLOWED, spec(Some("https://elsewhere.example.com/x"), None, data), Reason::Forbidden, &["allowImageURLs"]),
        (ALLOWED, spec(None, None, data), Reason::SpecInvalid, &["`placement.image`"]),
        // Nobody makes the proxy.
        (ONE, spec(None, None, None), Reason::CloudInitInvalid, &["`plain`", "`proxy: true`", "`cloudInit`"]),
        (
            ALLOWED,
            spec(Some("https://images.example.com/debian/x"), None, None),
            Reason::CloudInitInvalid,
            &["`cloudInit`"],
        ),
    ] {
        let backend = backend(&sized(entry));
        let error = backend.create(&wanted).await.expect_err("refused");
        assert_eq!((error.class, error.reason), (Class::Permanent, reason), "{error}");
        for word in words {
            assert!(error.detail.contains(word), "{word}: {error}");
        }
    }
}

/// What can be given goes on to the host: its key cannot be read here.
#[tokio::test]
async fn what_can_be_given_comes_as_far_as_the_host() {
    let data = Some("#cloud-config\n");
    for (entry, wanted) in [
        (ONE.to_owned(), spec(None, None, data)),
        (sized(ONE), spec(None, Some("small"), data)),
        (sized(ONE), spec(Some("plain"), Some("large"), data)),
        (sized(TWO), spec(Some("ready"), Some("small"), None)),
        (sized(ALLOWED), spec(Some("https://images.example.com/debian/x"), Some("small"), data)),
    ] {
        let backend = backend(&entry);
        let error = backend.create(&wanted).await.expect_err("there is no host");
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::SSHMaterialMissing), "{error}");
    }
}
