//! Grants, their forms, and what is said where there is none.

use std::collections::BTreeMap;

use egress_actors::domain::lease_book::{Absence, Announcement};

use reqwest::Method;
use serde_json::{Value, json};

use super::*;

fn seconds_between(earlier: &Value, later: &Value) -> i64 {
    let read = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    read(later).duration_since(read(earlier)).as_secs()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_tells_everything_that_a_crawler_needs() {
    let world = World::new().await;
    world.offer("dc", 1, 2);
    let ask = json!({"selectors": [{"tier": "gold"}, {"tier": "dc"}], "target": "Shop.example.", "ttlSeconds": 60,
        "owner": "spider-a/pod-7", "count": 1, "partial": false, "exclude": ["crawl/dc-9"]});
    let response = world.post("/v1/leases", ask).await;
    assert_eq!(response.status(), 201);
    let headers = response.headers().clone();
    let body: Value = response.json().await.unwrap();
    let lease = &body["leases"][0];
    assert_eq!(body["selectorIndex"], 1, "{body}");
    assert_eq!(lease["generation"], (7_u64 << 32) + 1);
    assert_eq!(lease["state"], "active");
    let proxy = json!({"name": "crawl/dc-0", "url": "http://u%3A1:p%40ss%2Fw0rd@10.0.0.1:3128", "scheme": "http",
        "host": "10.0.0.1", "port": 3128, "username": "u:1", "password": SECRET});
    assert_eq!(lease["proxy"], proxy);
    assert_eq!(lease["attributes"], json!({"tier": "dc"}));
    assert_eq!((&lease["exitIp"], &lease["target"]), (&json!("203.0.113.9"), &json!("shop.example")));
    assert_eq!((&lease["owner"], &lease["renewAfterSeconds"]), (&json!("spider-a/pod-7"), &json!(30)));
    assert_eq!(seconds_between(&lease["issuedAt"], &lease["expiresAt"]), 60);
    let id = lease["id"].as_str().unwrap();
    assert_eq!(headers["location"], format!("/v1/leases/{id}"));
    for (name, value) in [
        ("lease-id", id),
        ("lease-expires", lease["expiresAt"].as_str().unwrap()),
        ("content-type", "application/json"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_line_is_enough_and_can_answer_the_url_alone() {
    let world = World::new().await;
    world.offer("dc", 3, 1);
    let line = "/v1/leases?tier=dc&target=shop.example&ttl=60&owner=me&exclude=crawl/dc-0,crawl/dc-1";
    let response = world.send(Method::POST, line).header("accept", "text/plain").send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (201, &"text/plain; charset=utf-8".parse().unwrap())
    );
    let id = response.headers()["lease-id"].to_str().unwrap().to_owned();
    assert_eq!(response.headers()["location"], format!("/v1/leases/{id}"));
    let expires: jiff::Timestamp = response.headers()["lease-expires"].to_str().unwrap().parse().unwrap();
    let left = expires.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((50..=60).contains(&left), "{left}");
    let length = response.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
    let text = response.text().await.unwrap();
    assert_eq!(text, "http://u%3A1:p%40ss%2Fw0rd@10.0.0.3:3128\n");
    assert_eq!(length, text.len());
    let lease: Value = world.get(&format!("/v1/leases/{id}")).await.json().await.unwrap();
    assert_eq!((&lease["target"], &lease["owner"]), (&json!("shop.example"), &json!("me")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_headers_of_several_leases_stand_in_the_order_of_the_body() {
    let world = World::new().await;
    world.offer("dc", 3, 2);
    for accept in ["text/plain", "application/json"] {
        let response = world.send(Method::POST, "/v1/leases?count=3").header("accept", accept).send().await.unwrap();
        let headers = response.headers().clone();
        let all = |name: &str| -> Vec<String> {
            headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
        };
        let (ids, expires) = (all("lease-id"), all("lease-expires"));
        assert_eq!(all("location"), [format!("/v1/leases/{}", ids[0])]);
        let text = response.text().await.unwrap();
        let told: Vec<String> = if accept == "text/plain" {
            text.lines().map(str::to_owned).collect()
        } else {
            let body: Value = serde_json::from_str(&text).unwrap();
            let leases = body["leases"].as_array().unwrap().iter();
            leases.map(|lease| lease["proxy"]["url"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!((told.len(), ids.len(), expires.len()), (3, 3, 3));
        for ((url, id), until) in told.iter().zip(&ids).zip(&expires) {
            let lease: Value = world.get(&format!("/v1/leases/{id}")).await.json().await.unwrap();
            assert_eq!((lease["proxy"]["url"].as_str(), lease["expiresAt"].as_str()), (Some(&**url), Some(&**until)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_ask_takes_any_proxy_for_five_minutes() {
    let world = World::new().await;
    world.offer("dc", 2, 1);
    // curl -X POST -d '' says that nothing is a form.
    let form = "application/x-www-form-urlencoded";
    let bare = world.send(Method::POST, "/v1/leases").header("content-type", form).send().await.unwrap();
    let empty = world.post("/v1/leases", json!({})).await;
    for response in [bare, empty] {
        assert_eq!(response.status(), 201);
        let lease = response.json::<Value>().await.unwrap()["leases"][0].take();
        assert_eq!(
            (seconds_between(&lease["issuedAt"], &lease["expiresAt"]), &lease["renewAfterSeconds"]),
            (300, &json!(150))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_leases_are_all_or_nothing_unless_partial() {
    let world = World::new().await;
    world.offer("dc", 2, 1);
    let (status, code, detail) = problem(world.post("/v1/leases", json!({"count": 3})).await).await;
    assert_eq!((status, code.as_str()), (409, "none_available"));
    assert_eq!(detail, "2 proxies match, 2 are healthy: 2 available; 3 leases were asked for");
    let some = world.send(Method::POST, "/v1/leases?count=3&partial=true").header("accept", "text/plain").send();
    let some = some.await.unwrap();
    assert_eq!(some.headers().get_all("lease-id").iter().count(), 2);
    assert_eq!(some.text().await.unwrap().lines().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_excludes_all_that_matches_is_told_so_and_not_to_wait() {
    let world = World::new().await;
    world.offer("dc", 2, 1);
    world.offer("gold", 1, 1);
    // One of them is out: its end would not help either.
    world.lease("dc").await;
    let line = "tier=dc&target=shop.example&exclude=crawl/dc-0,crawl/dc-1";
    let refused = world.send(Method::POST, &format!("/v1/leases?{line}")).send().await.unwrap();
    assert!(!refused.headers().contains_key("retry-after"), "{:?}", refused.headers());
    let detail = "2 proxies match, and all of them are excluded by the request: waiting cannot help, exclude fewer";
    assert_eq!(problem(refused).await, (409, "none_available".to_owned(), detail.to_owned()));
    let explained: Value = world.get(&format!("/v1/explain?{line}")).await.json().await.unwrap();
    assert_eq!((&explained["detail"], &explained["excluded"]), (&json!(detail), &json!(2)), "{explained}");
    assert_eq!(explained["nextFreeInSeconds"], Value::Null, "{explained}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gets_none_is_told_why_and_when_to_come_back() {
    let world = World::new().await;
    world.offer("dc", 3, 1);
    let announced = super::offer("dc", 7, 1);
    world.leases.announce(Announcement {
        key: announced.key,
        uid: announced.uid,
        attributes: announced.attributes,
        capacity: 1,
        absence: Absence::Provisioning,
    });
    let ban = async |outcome: &str| {
        let lease = world.post("/v1/leases", json!({"target": "shop.example"})).await;
        let lease = lease.json::<Value>().await.unwrap()["leases"][0]["id"].as_str().unwrap().to_owned();
        let report = format!("/v1/leases/{lease}/report");
        assert_eq!(world.post(&report, json!({"outcome": outcome, "release": true})).await.status(), 204);
    };
    ban("banned").await;
    ban("rate_limited").await;
    world.post("/v1/leases", json!({"ttlSeconds": 20, "target": "shop.example"})).await;
    let refused = world.send(Method::POST, "/v1/leases?tier=dc&target=shop.example").send().await.unwrap();
    let retry: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    let body: Value = refused.json().await.unwrap();
    let counts: BTreeMap<&str, u64> =
        ["matching", "healthy", "leasedOut", "coolingDown", "bannedForTarget", "provisioning"]
            .into_iter()
            .map(|name| (name, body[name].as_u64().unwrap()))
            .collect();
    let expected = [
        ("matching", 4),
        ("healthy", 3),
        ("leasedOut", 1),
        ("coolingDown", 1),
        ("bannedForTarget", 1),
        ("provisioning", 1),
    ];
    assert_eq!(counts, expected.into(), "{body}");
    assert!((15..=20).contains(&retry), "{retry}");
    assert_eq!(body["nextFreeInSeconds"], retry);
    assert_eq!(
        body["detail"],
        format!(
            "4 proxies match, 3 are healthy: 1 leased out, 1 cooling down for shop.example, 1 banned for shop.example; \
             1 provisioning; next free in {retry} s"
        )
    );
    let explained: Value = world.get("/v1/explain?tier=dc&target=shop.example").await.json().await.unwrap();
    assert_eq!((&explained["wouldGrant"], &explained["code"]), (&json!(false), &json!("none_available")));
    assert_eq!((&explained["matching"], &explained["detail"]), (&body["matching"], &body["detail"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_takes_no_lease() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let explained: Value = world.get("/v1/explain?tier=dc").await.json().await.unwrap();
    assert_eq!((&explained["wouldGrant"], &explained["selectorIndex"]), (&json!(true), &json!(0)), "{explained}");
    assert_eq!((&explained["available"], &explained["code"]), (&json!(1), &Value::Null));
    let none: Value = world.get("/v1/explain?tier=gold").await.json().await.unwrap();
    assert_eq!((&none["wouldGrant"], &none["code"]), (&json!(false), &json!("no_such_selector")), "{none}");
    assert_eq!(world.out().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_match_is_another_answer_than_what_is_taken() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let (status, code, detail) =
        problem(world.post("/v1/leases", json!({"selectors": [{"tier": "gold"}]})).await).await;
    assert_eq!((status, code.as_str()), (404, "no_such_selector"));
    assert!(detail.contains("no proxy matches"), "{detail}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_at_once_share_twenty_proxies_without_a_double() {
    let world = World::new().await;
    world.offer("dc", 20, 1);
    let asks = (0..200).map(|_| world.post("/v1/leases", json!({"selectors": [{"tier": "dc"}]})));
    let (mut names, mut refused) = (Vec::new(), 0);
    for response in futures::future::join_all(asks).await {
        let status = response.status().as_u16();
        let body: Value = response.json().await.unwrap();
        match status {
            201 => names.push(body["leases"][0]["proxy"]["name"].as_str().unwrap().to_owned()),
            409 => {
                refused += 1;
                let seen = ["matching", "healthy", "leasedOut", "available"].map(|name| body[name].as_u64().unwrap());
                assert_eq!(seen, [20, 20, 20, 0], "{body}");
            }
            other => panic!("{other}: {body}"),
        }
    }
    names.sort();
    names.dedup();
    assert_eq!((names.len(), refused), (20, 180));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_pool_answers_with_an_explanation_and_never_407() {
    let world = World::new().await;
    for response in futures::future::join_all((0..100).map(|_| world.post("/v1/leases", json!({})))).await {
        assert_eq!(problem(response).await.1, "no_such_selector");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_fleet_is_known_nobody_hears_that_there_is_none() {
    let world = World::wished(Wish { is_fleet_known: false, ..Wish::default() }).await;
    let (status, code, _) = problem(world.post("/v1/leases", json!({})).await).await;
    assert_eq!((status, code.as_str()), (503, "not_ready"));
    let explained: Value = world.get("/v1/explain").await.json().await.unwrap();
    assert_eq!(explained["code"], "not_ready");
    // What is on offer already is granted, known fleet or not.
    world.offer("dc", 1, 1);
    assert_eq!(world.post("/v1/leases", json!({})).await.status(), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_lead_grants_nothing() {
    for claim in [ClaimState::Standby, ClaimState::Suspended { epoch: 1 }] {
        let world = World::wished(Wish { claim, ..Wish::default() }).await;
        world.offer("dc", 1, 1);
        let (status, code, detail) = problem(world.post("/v1/leases", json!({})).await).await;
        assert_eq!((status, code.as_str()), (503, "not_ready"), "{detail}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_answers_every_lease_call_with_who_leads_and_keeps_no_connection() {
    let world = World::wished(Wish { claim: ClaimState::Standby, token: Some("t"), ..Wish::default() }).await;
    let id = "/v1/leases/ls_0123456789abcdef";
    let (renew, report) = (format!("{id}/renew"), format!("{id}/report"));
    for (method, path) in [
        (Method::POST, "/v1/leases"),
        (Method::GET, "/v1/leases"),
        (Method::GET, id),
        (Method::DELETE, id),
        (Method::POST, &renew),
        (Method::POST, &report),
        (Method::GET, "/v1/proxies"),
        (Method::GET, "/v1/explain?tier=dc"),
    ] {
        let answer = world.send(method.clone(), path).bearer_auth("t").send().await.unwrap();
        assert_eq!(answer.status(), 503, "{method} {path}");
        assert!(answer.headers().contains_key("retry-after"), "{method} {path}");
        assert_eq!(answer.headers()["connection"], "close", "or the next try would come here too");
        let body: Value = answer.json().await.unwrap();
        assert_eq!((body["code"].as_str(), body["leader"].as_str()), (Some("not_ready"), Some("pod-b")), "{body}");
        // Who leads is nobody's business without a token.
        assert_eq!(world.send(method, path).send().await.unwrap().status(), 401);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_renew_its_claim_still_renews_and_releases_leases() {
    let (publish, claim) = Claim::new(ClaimState::Leading { epoch: 7, until: None });
    let world = World::under(claim, Wish::default()).await;
    world.offer("dc", 1, 1);
    let id = world.lease("dc").await["id"].as_str().unwrap().to_owned();
    publish.send_replace(ClaimState::Suspended { epoch: 7 });
    assert_eq!(world.post(&format!("/v1/leases/{id}/renew"), json!({"ttlSeconds": 60})).await.status(), 200);
    assert_eq!(world.post("/v1/leases", json!({})).await.status(), 503);
    assert_eq!(world.send(Method::DELETE, &format!("/v1/leases/{id}")).send().await.unwrap().status(), 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_down_or_full_says_so() {
    let world = World::wished(Wish { is_registry_up: false, ..Wish::default() }).await;
    for path in ["/v1/leases", "/v1/proxies", "/v1/explain", "/v1/leases/ls_1"] {
        let (status, code, _) = problem(world.get(path).await).await;
        assert_eq!((status, code.as_str()), (503, "not_ready"), "{path}");
    }
    let world = World::new().await;
    world.occupy().await;
    let mut waiting: Vec<_> = (0..4096).map(|_| Box::pin(world.leases.proxies())).collect();
    for call in &mut waiting {
        let _takes_a_place = futures::poll!(call.as_mut());
    }
    let (status, code, _) = problem(world.post("/v1/leases", json!({})).await).await;
    assert_eq!((status, code.as_str()), (503, "overloaded"));
    world.gate.open();
    drop(waiting);
    world.offer("dc", 1, 1);
    eventually("it recovers", async || world.post("/v1/leases", json!({})).await.status() == 201).await;
}
