//! Objects as people make them: malformed, held by others, made anew, with Secrets that change.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use egress_operator::crd::proxy::Proxy;
use egress_operator::crd::{API_VERSION, FINALIZER, HOST, SECRET_LABEL};

use crate::api::fetch;
use crate::eventually;
use crate::group::{Group, granted};
use crate::life::Proxies;
use crate::manifest::{external, managed};
use crate::plane::{Options, Plane};
use crate::site::Site;
use crate::squids::OwnSquid;

/// Proxies as any client has them that knows nothing of their shape.
async fn untyped(plane: &Plane, namespace: &str) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<Proxy>(&());
    Api::namespaced_with(plane.client().await, namespace, &kind)
}

fn object(name: &str, finalizers: &[&str], annotations: Value, spec: Value) -> DynamicObject {
    let metadata = json!({"name": name, "finalizers": finalizers, "annotations": annotations});
    let whole = json!({"apiVersion": API_VERSION, "kind": "Proxy", "metadata": metadata, "spec": spec});
    serde_json::from_value(whole).unwrap()
}

/// Makes objects under a definition that checks nothing, and puts ours back.
async fn slip_past(plane: &Plane, namespace: &str, objects: Vec<DynamicObject>) {
    let definitions = Api::<CustomResourceDefinition>::all(plane.client().await);
    let name = "proxies.crawl.example.com";
    let change = async |change: &dyn Fn(&mut CustomResourceDefinition)| {
        let mut definition = definitions.get(name).await.unwrap();
        change(&mut definition);
        definitions.replace(name, &PostParams::default(), &definition).await.unwrap()
    };
    let ours = definitions.get(name).await.unwrap().spec;
    change(&|definition| {
        let version = &mut definition.spec.versions[0];
        version.additional_printer_columns = None;
        version.selectable_fields = None;
        let lax = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        version.schema = serde_json::from_value(lax).unwrap();
    })
    .await;
    let proxies = untyped(plane, namespace).await;
    for object in objects {
        eventually("the lax definition takes it", async || {
            proxies.create(&PostParams::default(), &object).await.ok().map(drop)
        })
        .await;
    }
    change(&|definition| definition.spec = ours.clone()).await;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let bad = object("bad-for-sure", &[], json!({}), json!({"managed": {"provider": "p", "port": "http"}}));
    eventually("our definition is back", async || proxies.create(&dry, &bad).await.is_err().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_object_is_reported_on_itself_can_be_deleted_and_the_rest_goes_on() {
    let plane = Plane::start(Options::default()).await;
    let (Some(site), Some(squid)) = (Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(&plane, "malformed").await;
    let proxies = untyped(&plane, &group.namespace).await;
    let cases = [
        ("word", json!({"external": {"url": "http://127.0.0.1:1"}, "maxLeases": "many"}), "spec.maxLeases"),
        ("port", json!({"managed": {"provider": "local", "port": 99_999}}), "spec.managed.port"),
        ("both", json!({"managed": {"provider": "local"}, "external": {"url": "http://127.0.0.1:1"}}), "spec"),
        ("url", json!({"external": {"url": "socks5://127.0.0.1:1"}}), "spec.external.url"),
        ("leases", json!({"external": {"url": "http://127.0.0.1:1"}, "maxLeases": 0}), "spec.maxLeases"),
        (
            "check",
            json!({"external": {"url": "http://127.0.0.1:1"}, "healthCheck": {"interval": "1d"}}),
            "spec.healthCheck.interval",
        ),
    ];
    // The last ones have been through an operator that took them.
    let held = [(
        "held",
        json!({"managed": {"provider": "local"}, "maxLeases": "many"}),
        vec!["a.example.com/first", FINALIZER, "b.example.com/last"],
    )];
    let mut objects: Vec<_> = cases.iter().map(|(name, spec, _)| object(name, &[], json!({}), spec.clone())).collect();
    objects.extend(
        held.iter().map(|(name, spec, finalizers)| object(name, finalizers, json!({HOST: "local"}), spec.clone())),
    );
    slip_past(&plane, &group.namespace, objects).await;

    let operator = group.replica(&site, "op-a").await.start().await;
    let good = Proxies::of(&plane, &group.namespace).await;
    good.apply(&external("good", squid.port).namespace(&group.namespace)).await;
    good.becomes("good", "Ready").await;
    for (name, _, field) in &cases {
        let ready = eventually(&format!("{name} is told to be wrong"), async || {
            let object = proxies.get(name).await.unwrap();
            let conditions = object.data["status"]["conditions"].as_array()?.clone();
            conditions.into_iter().find(|condition| condition["type"] == "Ready")
        })
        .await;
        assert_eq!((&ready["status"], &ready["reason"]), (&"False".into(), &"SpecInvalid".into()), "{name}: {ready}");
        assert!(ready["message"].as_str().unwrap().contains(field), "{name}: {ready}");
    }
    let rows = plane.kubectl(&["get", "px", "-n", &group.namespace, "-o", "wide"]);
    eprintln!("{}", rows.out);
    assert!(rows.out.contains("SpecInvalid"), "{rows:?}");

    // Each can be deleted, and of the finalizers only ours goes.
    for (name, _, _) in &cases {
        proxies.delete(name, &DeleteParams::default()).await.unwrap();
        eventually(&format!("{name} is gone"), async || proxies.get_opt(name).await.unwrap().is_none().then_some(()))
            .await;
    }
    proxies.delete("held", &DeleteParams::default()).await.unwrap();
    eventually("of the finalizers only ours goes", async || {
        let left = proxies.get("held").await.unwrap().metadata.finalizers.unwrap_or_default();
        (left == ["a.example.com/first", "b.example.com/last"]).then_some(())
    })
    .await;
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    proxies.patch("held", &PatchParams::default(), &none).await.unwrap();
    eventually("it is gone", async || proxies.get_opt("held").await.unwrap().is_none().then_some(())).await;
    granted(&operator.api, "good").await;
}

#[tokio::test]
async fn a_proxy_made_anew_while_the_old_one_is_held_by_somebody_else_is_another_one() {
    let plane = Plane::shared().await;
    let Some(site) = Site::new() else { return };
    let group = Group::new(plane, "anew").await;
    let proxies = Proxies::of(plane, &group.namespace).await;
    let operator = group.replica(&site, "op-a").await.start().await;
    let finalizers = |given: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": given}}));
    proxies.apply(&managed("px").namespace(&group.namespace)).await;
    let old = proxies.becomes("px", "Ready").await;
    let theirs = ["a.example.com/first", FINALIZER, "b.example.com/last"];
    proxies.0.patch("px", &PatchParams::default(), &finalizers(&theirs)).await.unwrap();
    let (lease, _) = granted(&operator.api, "px").await;
    let squid = site.squids();

    proxies.delete("px").await;
    eventually("only the others hold it", async || {
        let left = proxies.get("px").await.unwrap().metadata.finalizers.unwrap();
        (left == ["a.example.com/first", "b.example.com/last"]).then_some(())
    })
    .await;
    assert!(site.squids().is_empty() && site.folders().is_empty(), "ours goes after the instance");
    // One after the other lets go, and at the same moment it is made anew.
    proxies.0.patch("px", &PatchParams::default(), &finalizers(&["b.example.com/last"])).await.unwrap();
    proxies.0.patch("px", &PatchParams::default(), &finalizers(&[])).await.unwrap();
    proxies.apply(&managed("px").namespace(&group.namespace)).await;
    let new = eventually("the new one is ready", async || {
        let proxy = proxies.get("px").await?;
        let is_ready = proxy.status.as_ref()?.phase.as_deref() == Some("Ready");
        (is_ready && proxy.metadata.uid != old.metadata.uid).then_some(proxy)
    })
    .await;
    assert_eq!(new.metadata.finalizers.unwrap(), [FINALIZER]);
    assert!(site.squids().len() == 1 && site.squids() != squid);
    let (fresh, _) = granted(&operator.api, "px").await;
    assert_ne!(fresh["id"], lease["id"]);
    assert_eq!(fetch(&fresh, &site.target.url()).await.status(), 204);
}

#[tokio::test]
async fn a_rotated_secret_is_read_anew_and_one_that_loses_its_label_is_told() {
    let plane = Plane::shared().await;
    let (Some(site), Some(squid)) = (Site::new(), OwnSquid::with_password("crawler", "right-password")) else { return };
    let group = Group::new(plane, "secret").await;
    let proxies = Proxies::of(plane, &group.namespace).await;
    let secrets = Api::<Secret>::namespaced(plane.client().await, &group.namespace);
    let write = async |label: Option<&str>, password: &str| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bought", "labels": {SECRET_LABEL: label}},
            "stringData": {"username": "crawler", "password": password}
        });
        match secrets.get_opt("bought").await.unwrap() {
            Some(_) => secrets.patch("bought", &PatchParams::default(), &Patch::Merge(&secret)).await.unwrap(),
            None => secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap(),
        }
    };
    let message = async |name: &str| {
        let conditions = proxies.get(name).await.unwrap().status?.conditions;
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready")?;
        Some((ready.status, ready.reason, ready.message))
    };
    let flavor =
        format!("external: {{url: \"http://127.0.0.1:{}\", credentialsSecretRef: {{name: bought}}}}", squid.port);
    // So rarely probed that only news can be the reason.
    let check = "interval: 10m, timeout: 5s, failureThreshold: 1";
    proxies.apply(&external("px", squid.port).flavor(&flavor).check(check).namespace(&group.namespace)).await;
    let operator = group.replica(&site, "op-a").await.start().await;
    eventually("it says that its Secret is missing", async || {
        let (_, reason, text) = message("px").await?;
        (reason == "SecretNotFound" && text.contains("bought")).then_some(())
    })
    .await;
    write(Some("true"), "wrong-password").await;
    eventually("the proxy refuses the wrong password", async || {
        let (_, reason, text) = message("px").await?;
        (reason == "Unhealthy" && text.contains("ProxyAuthRequired")).then_some(())
    })
    .await;
    write(Some("true"), "right-password").await;
    proxies.becomes("px", "Ready").await;
    let (lease, _) = granted(&operator.api, "px").await;
    assert_eq!(lease["proxy"]["password"], "right-password");
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204);
    operator.api.release(&lease).await;

    write(None, "right-password").await;
    let told = eventually("it is told that the label is gone", async || {
        message("px").await.filter(|(_, _, text)| text.contains("bought"))
    })
    .await;
    assert!(told.2.contains(SECRET_LABEL), "{told:?}");
    assert_eq!(told.1, "SecretNotLabelled");
    write(Some("true"), "right-password").await;
    eventually("it is well again", async || message("px").await.filter(|(_, _, text)| !text.contains("bought"))).await;
}

/// The words that tell a person what is wrong without the logs. What is printed here is kept in docs/kubectl.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_tells_what_is_wrong() {
    // Its own: in the shared one a ProviderHealth of this name is another operator's.
    let plane = Plane::start(Options::default()).await;
    let (Some(site), Some(squid)) = (Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(&plane, "crawl").await;
    let proxies = Proxies::of(&plane, &group.namespace).await;
    let operator = group.replica(&site, "op-a").await.start().await;
    let of = |manifest: crate::manifest::Manifest| manifest.attribute("tier", "dc").namespace(&group.namespace);
    proxies.apply(&of(external("bought-1", squid.port))).await;
    proxies.apply(&of(external("bought-2", crate::ports::one()))).await;
    let flavor = "external: {url: \"http://127.0.0.1:3128\", credentialsSecretRef: {name: bought}}";
    proxies.apply(&of(external("bought-3", 3128).flavor(flavor))).await;
    proxies.apply(&of(managed("squid-1"))).await;
    proxies.apply(&of(managed("squid-2").flavor("managed: {provider: nowhere}"))).await;
    proxies.becomes("bought-1", "Ready").await;
    proxies.becomes("squid-1", "Ready").await;
    let wide = || plane.kubectl(&["get", "px", "-n", &group.namespace, "-o", "wide"]).out;
    let row = |text: &str, name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    let rows = [
        ("bought-1", "Ready", "Healthy"),
        ("bought-2", "Unhealthy", "Unhealthy"),
        ("bought-3", "Pending", "SecretNotFound"),
        ("squid-1", "Ready", "Healthy"),
        ("squid-2", "Failed", "ProviderNotConfigured"),
    ];
    eventually("each row tells how it is", async || {
        let text = wide();
        let tells = |(name, phase, reason): &(&str, &str, &str)| {
            let row = row(&text, name);
            row.contains(phase) && row.contains(reason)
        };
        rows.iter().all(tells).then_some(())
    })
    .await;
    eprintln!("{}", wide());
    eprintln!("{}", plane.kubectl(&["get", "px", "-n", &group.namespace]).out);
    let events = eventually("the events are there", async || {
        let text = plane.kubectl(&["get", "events", "-n", &group.namespace, "--sort-by=.lastTimestamp"]).out;
        let told = ["proxy/bought-2", "nothing listens there", "SecretNotFound", "proxy/squid-1", "serving"];
        let told = told.iter().chain(&["is not in the providers config", "Warning", "Normal"]);
        told.into_iter().all(|words| text.contains(words)).then_some(text)
    })
    .await;
    eprintln!("{events}");
    for (name, words) in [
        ("bought-2", ["nothing listens there", "Warning  Unhealthy"]),
        ("bought-3", ["make one, labelled crawl.example.com/proxy-secret", "Warning  SecretNotFound"]),
        ("squid-1", ["the probes go through", "Normal  Healthy"]),
        ("squid-2", ["correct or put back the entry, or delete the Proxy", "Warning  ProviderNotConfigured"]),
    ] {
        let said = plane.kubectl(&["describe", "px", "-n", &group.namespace, name]).out;
        eprintln!("{said}");
        let text = said.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect::<Vec<_>>().join("  ");
        for words in words {
            assert!(text.contains(words), "{name} does not say {words:?}: {said}");
        }
    }
    let healths = plane.kubectl(&["get", "ph"]).out;
    eprintln!("{healths}");
    eprintln!("{}", plane.kubectl(&["get", "ph", "-o", "wide"]).out);
    assert!(row(&healths, "local").contains("1/1"), "{healths}");
    drop(operator);
}

/// As docs/operating.md has it: no update is taken by the API server, and this is how it is put right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_takes_no_update_is_told_in_an_event_and_goes_once_the_rules_let_it() {
    let plane = Plane::start(Options::default()).await;
    let Some(site) = Site::new() else { return };
    let group = Group::new(&plane, "stuck").await;
    let proxies = untyped(&plane, &group.namespace).await;
    let spec = json!({"managed": {"provider": "local", "port": "http"}});
    slip_past(&plane, &group.namespace, vec![object("px", &[FINALIZER], json!({HOST: "local"}), spec)]).await;
    let operator = group.replica(&site, "op-a").await.start().await;
    eventually("an event tells the field", async || {
        let said = plane.kubectl(&["get", "events", "-n", &group.namespace]).out;
        (said.contains("SpecInvalid") && said.contains("spec.managed.port")).then_some(())
    })
    .await;
    proxies.delete("px", &DeleteParams::default()).await.unwrap();
    eventually("the log says where the way out is", async || {
        operator.log.tail().contains("An object that takes no update").then_some(())
    })
    .await;
    assert!(proxies.get_opt("px").await.unwrap().is_some());
    let patch = r#"[
        {"op": "remove", "path": "/spec/versions/0/selectableFields"},
        {"op": "replace", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
         "value": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}]"#;
    let said = plane.kubectl(&["patch", "crd", "proxies.crawl.example.com", "--type=json", "-p", patch]);
    assert!(said.ok, "{said:?}");
    crate::within(std::time::Duration::from_mins(3), "its finalizer goes", async || {
        proxies.get_opt("px").await.unwrap().map_or(Ok(()), |_| Err("it is there"))
    })
    .await;
    let said = plane.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", "config/crd"]);
    assert!(said.ok, "{said:?}");
}
