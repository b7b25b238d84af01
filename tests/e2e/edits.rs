//! Manifests that change while the operator runs.

use std::fs;
use std::time::Duration;

use super::api::fetch;
use super::manifest::{managed, secret};
use super::site::Site;
use super::{eventually, stays};

/// More than a look takes.
const A_FEW_LOOKS: Duration = Duration::from_secs(4);

#[tokio::test]
async fn edited_attributes_and_lease_limits_count_at_once_and_leave_the_squid_alone() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().args(&["--list-interval", "1s"]).start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let pid = site.squid_of("a");
    let lease = api.lease("a").await;
    assert_eq!(api.try_lease("a").await.0, 409);

    site.apply("a.yaml", &managed("a").attribute("tier", "dc").max_leases(2).yaml());
    eventually("the new attribute is known", async || {
        let row = api.proxy("a").await.unwrap();
        (row["attributes"]["tier"] == "dc" && row["maxLeases"] == 2 && row["leases"] == 1).then_some(())
    })
    .await;
    let second = eventually("there is room for one more", async || {
        let body = serde_json::json!({"selectors": [{"tier": "dc"}]});
        let (status, answer) = api.call(reqwest::Method::POST, "/v1/leases", Some(&body)).await;
        (status == 201).then_some(answer)
    })
    .await;
    assert_eq!(second["leases"][0]["attributes"]["tier"], "dc");
    assert_eq!(api.try_lease("a").await.0, 409, "more than two");
    let first = api.get(&format!("/v1/leases/{}", lease["id"].as_str().unwrap())).await;
    assert_eq!(first["state"], "active");
    assert_eq!(site.squid_of("a"), pid);
}

#[tokio::test]
async fn a_squid_takes_over_the_password_that_its_secret_has_now() {
    let Some(site) = Site::new() else { return };
    let write = |password: &str| site.apply("secret.yaml", &secret("auth", "ann", password));
    write("the-first-one");
    let flavor = "managed: {provider: local, credentialsSecretRef: {name: auth}}";
    site.apply("a.yaml", &managed("a").flavor(flavor).yaml());
    let operator = site.operator().args(&["--list-interval", "1s"]).start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let pid = site.squid_of("a");
    assert_eq!(fetch(&api.lease("a").await, &site.target.url()).await.status(), 204);

    write("the-second-one");
    let lease = eventually("the new password is leased, and taken", async || {
        let (status, mut body) = api.try_lease("a").await;
        let lease = (status == 201).then(|| body["leases"][0].take())?;
        if lease["proxy"]["password"] == "the-second-one" && fetch(&lease, &site.target.url()).await.status() == 204 {
            return Some(lease);
        }
        api.release(&lease).await;
        None
    })
    .await;
    assert_eq!(site.squid_of("a"), pid, "it is the same Squid");
    api.release(&lease).await;

    // While the operator is away too.
    operator.terminate().await;
    write("the-third-one");
    let operator = site.operator().args(&["--list-interval", "1s"]).start().await;
    eventually("the newest password is taken", async || {
        let (status, mut body) = operator.api.try_lease("a").await;
        let lease = (status == 201).then(|| body["leases"][0].take())?;
        let is_taken = fetch(&lease, &site.target.url()).await.status() == 204;
        operator.api.release(&lease).await;
        (lease["proxy"]["password"] == "the-third-one" && is_taken).then_some(())
    })
    .await;
    assert_eq!(site.squid_of("a"), pid, "it is the same Squid");
}

#[tokio::test]
async fn a_broken_edit_is_told_with_file_and_line_and_the_last_good_version_goes_on() {
    let Some(site) = Site::new() else { return };
    site.apply("both.yaml", &(managed("a").yaml() + &managed("b").yaml()));
    let operator = site.operator().start().await;
    let api = &operator.api;
    api.all_ready(2).await;
    let pids = site.squids();

    // The same two, and a number of the second is a word.
    let broken =
        managed("a").attribute("seen", "yes").yaml() + &managed("b").yaml().replace("maxLeases: 1", "maxLeases: many");
    let line = 1 + broken.lines().position(|line| line.contains("many")).unwrap();
    site.apply("both.yaml", &broken);
    let problem = eventually("the broken one is told", async || api.problems().await.into_iter().next()).await;
    assert!(problem["file"].as_str().unwrap().ends_with("both.yaml"), "{problem}");
    assert_eq!(problem["line"], line, "{problem}");
    assert!(problem["message"].as_str().unwrap().contains("maxLeases"), "{problem}");
    // The good one of the same file counts.
    eventually("a is edited", async || (api.proxy("a").await?["attributes"]["seen"] == "yes").then_some(())).await;

    site.apply("both.yaml", "this: [is not, YAML");
    eventually("that it is no YAML is told", async || api.problems().await.into_iter().find(|now| now != &problem))
        .await;
    stays(A_FEW_LOOKS, "both go on", async || {
        site.squids() == pids && api.is("a", "Ready").await && api.is("b", "Ready").await
    })
    .await;
    site.apply("both.yaml", &(managed("a").yaml() + &managed("b").max_leases(3).yaml()));
    eventually("nothing is wrong any more", async || api.problems().await.is_empty().then_some(())).await;
    eventually("b is edited", async || (api.proxy("b").await?["maxLeases"] == 3).then_some(())).await;
    assert_eq!(site.squids(), pids);
}

#[tokio::test]
async fn a_changed_immutable_field_is_refused_and_told_on_the_proxy_also_after_a_restart() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().start().await;
    operator.api.all_ready(1).await;
    let pids = site.squids();
    let changed = managed("a").flavor("managed: {provider: other}").max_leases(7).yaml();
    site.apply("a.yaml", &changed);
    let told = async |operator: &super::operator::Operator| {
        let problem = eventually("the refusal", async || operator.api.problems().await.into_iter().next()).await;
        let message = problem["message"].as_str().unwrap();
        assert!(message.contains("managed.provider") && message.contains("immutable"), "{problem}");
        assert!(problem["file"].as_str().unwrap().ends_with("a.yaml"), "{problem}");
    };
    told(&operator).await;
    let row = eventually("the Proxy's own message", async || {
        operator
            .api
            .proxy("a")
            .await
            .filter(|row| row["message"].as_str().is_some_and(|text| text.contains("immutable")))
    })
    .await;
    assert_eq!((&row["phase"], &row["maxLeases"]), (&"Ready".into(), &1.into()), "{row}");
    // Also when that message has been stored, and told to the operator as every change is.
    stays(A_FEW_LOOKS, "it stays on the Proxy", async || {
        operator.api.proxy("a").await.unwrap()["message"].as_str().is_some_and(|text| text.contains("immutable"))
    })
    .await;
    operator.kill().await;

    let operator = site.operator().start().await;
    told(&operator).await;
    operator.api.all_ready(1).await;
    assert_eq!(operator.api.proxy("a").await.unwrap()["maxLeases"], 1);
    assert_eq!(site.squids(), pids);
}

#[tokio::test]
async fn of_two_objects_with_one_name_the_first_goes_on_and_the_other_is_told() {
    let Some(site) = Site::new() else { return };
    site.apply("m.yaml", &managed("a").attribute("from", "m").yaml());
    let operator = site.operator().start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let pids = site.squids();
    // Before it in the order of names, and all the same the newcomer.
    site.apply("c.yaml", &managed("a").attribute("from", "c").yaml());
    let problem = eventually("the second is told", async || api.problems().await.into_iter().next()).await;
    assert!(problem["file"].as_str().unwrap().ends_with("c.yaml"), "{problem}");
    assert!(problem["message"].as_str().unwrap().contains("m.yaml"), "{problem}");
    stays(A_FEW_LOOKS, "the first goes on", async || {
        let row = api.proxy("a").await.unwrap();
        row["attributes"]["from"] == "m" && row["phase"] == "Ready"
    })
    .await;
    site.remove("m.yaml");
    eventually("the other one takes over", async || (api.proxy("a").await?["attributes"]["from"] == "c").then_some(()))
        .await;
    assert_eq!(site.squids(), pids, "a move from file to file is no deletion");
    eventually("nothing is wrong any more", async || api.problems().await.is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_half_written_file_removes_nothing() {
    let Some(site) = Site::new() else { return };
    let whole = managed("a").yaml() + &managed("b").yaml() + &managed("c").yaml();
    site.apply("all.yaml", &whole);
    let operator = site.operator().start().await;
    let api = &operator.api;
    api.all_ready(3).await;
    let pids = site.squids();
    // As an editor leaves it when the disk is full: within the second object.
    let cut = whole.find("name: b").unwrap();
    fs::write(site.manifests().join("all.yaml"), &whole[..cut]).unwrap();
    eventually("it is told", async || api.problems().await.into_iter().next()).await;
    stays(A_FEW_LOOKS, "all three go on", async || site.squids() == pids && api.proxies().await.len() == 3).await;
    fs::write(site.manifests().join("all.yaml"), whole).unwrap();
    eventually("nothing is wrong any more", async || api.problems().await.is_empty().then_some(())).await;
    api.all_ready(3).await;
    assert_eq!(site.squids(), pids);
}
