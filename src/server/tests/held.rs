//! What happens to leases that are out, and what everybody may see.

use std::time::Duration;

use egress_actors::domain::lease_book::{Absence, Cordon};
use reqwest::Method;
use serde_json::{Value, json};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lease_lives_on_and_a_released_one_never_again() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let lease = world.lease("dc").await;
    let (path, generation) = (format!("/v1/leases/{}", lease["id"].as_str().unwrap()), &lease["generation"]);
    let renewed = world.post(&format!("{path}/renew"), json!({"ttlSeconds": 3600, "generation": generation})).await;
    assert_eq!((renewed.status().as_u16(), &renewed.headers()["lease-id"]), (200, &path[11..].parse().unwrap()));
    let renewed: Value = renewed.json().await.unwrap();
    assert_eq!((&renewed["state"], &renewed["renewAfterSeconds"]), (&json!("active"), &json!(1800)));
    assert!(renewed["expiresAt"].as_str() > lease["expiresAt"].as_str());
    assert_eq!(renewed["proxy"], lease["proxy"], "a holder keeps what it was given");
    // A body is not needed.
    assert_eq!(world.send(Method::POST, &format!("{path}/renew")).send().await.unwrap().status(), 200);

    assert_eq!(world.send(Method::DELETE, &path).send().await.unwrap().status(), 204);
    for gone in [
        world.post(&format!("{path}/renew"), json!({})).await,
        world.get(&path).await,
        world.post(&format!("{path}/renew"), json!({"generation": 1})).await,
    ] {
        let (status, code, detail) = problem(gone).await;
        assert_eq!((status, code.as_str()), (410, "lease_gone"));
        assert!(detail.contains("was released at 20"), "{detail}");
    }
    let gone: Value = world.get(&path).await.json().await.unwrap();
    assert_eq!(gone["endedBy"], "released");
    assert!(gone["endedAt"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_is_always_done() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let id = world.lease("dc").await["id"].as_str().unwrap().to_owned();
    for id in [id.as_str(), &id, "ls_0000000000", "never-one", "a%00b"] {
        let response = world.send(Method::DELETE, &format!("/v1/leases/{id}")).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.text().await.unwrap().as_str()), (204, ""), "{id}");
    }
    assert_eq!(world.out().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn release_and_renew_at_once_never_resurrect() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    for _ in 0..50 {
        let path = format!("/v1/leases/{}", world.lease("dc").await["id"].as_str().unwrap());
        let renew = format!("{path}/renew");
        let (renewed, released) = tokio::join!(world.post(&renew, json!({})), world.send(Method::DELETE, &path).send());
        assert!(matches!(renewed.status().as_u16(), 200 | 410));
        assert_eq!(released.unwrap().status(), 204);
        assert_eq!(world.post(&renew, json!({})).await.status(), 410);
    }
    assert_eq!(world.out().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_lease_and_a_wrong_generation_are_told_apart() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let lease = world.lease("dc").await;
    let path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
    let body = |generation: u64| json!({"outcome": "ok", "generation": generation});
    for (path, body, expected) in [
        (format!("{path}/renew"), json!({"generation": 1}), (412, "generation_mismatch")),
        (format!("{path}/report"), body(1), (412, "generation_mismatch")),
        ("/v1/leases/ls_nobody0/renew".into(), json!({}), (404, "no_such_lease")),
        ("/v1/leases/ls_nobody0/report".into(), body(1), (404, "no_such_lease")),
        ("/v1/leases/undefined/renew".into(), json!({}), (404, "no_such_lease")),
    ] {
        let (status, code, detail) = problem(world.post(&path, body).await).await;
        assert_eq!((status, code.as_str()), expected, "{path}: {detail}");
    }
    assert_eq!(problem(world.get("/v1/leases/undefined").await).await.1, "no_such_lease");
    let held = lease["generation"].as_u64().unwrap();
    assert_eq!(world.post(&format!("{path}/report"), body(held)).await.status(), 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_can_release_and_is_taken_after_the_end() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let path = format!("/v1/leases/{}/report", world.lease("dc").await["id"].as_str().unwrap());
    let banned =
        json!({"outcome": "banned", "target": "shop.example", "httpStatus": 403, "latencyMs": 812, "release": true});
    assert_eq!(world.post(&path, banned.clone()).await.status(), 204);
    assert_eq!(world.out().await, 0);
    assert_eq!(world.post(&path, banned).await.status(), 204, "a late report counts");
    let refused: Value = world.post("/v1/leases", json!({"target": "shop.example"})).await.json().await.unwrap();
    assert_eq!((&refused["code"], &refused["bannedForTarget"]), (&json!("none_available"), &json!(1)));
    assert_eq!(world.post("/v1/leases", json!({"target": "other.example"})).await.status(), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_hear_that_their_proxy_drains() {
    let world = World::new().await;
    world.offer("dc", 1, 2);
    let path = format!("/v1/leases/{}/renew", world.lease("dc").await["id"].as_str().unwrap());
    let offer = offer("dc", 0, 2);
    let drain_by = Some(Instant::now() + Duration::from_secs(60));
    world.leases.cordon(&offer.key, &offer.uid, Some(Cordon { drain_by }), Tell::nowhere());
    let renewed: Value = world.post(&path, json!({})).await.json().await.unwrap();
    assert_eq!(renewed["state"], "draining");
    let by: jiff::Timestamp = renewed["drainBy"].as_str().unwrap().parse().unwrap();
    assert!((50..=60).contains(&by.duration_since(jiff::Timestamp::now()).as_secs()), "{by}");
    let refused: Value = world.post("/v1/leases", json!({})).await.json().await.unwrap();
    assert_eq!(refused["draining"], 1, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_of_one_owner_if_asked() {
    let world = World::new().await;
    world.offer("dc", 3, 1);
    for owner in ["a", "a", "b"] {
        assert_eq!(world.post("/v1/leases", json!({"owner": owner})).await.status(), 201);
    }
    for (path, count) in [("/v1/leases", 3), ("/v1/leases?owner=a", 2), ("/v1/leases?owner=c", 0)] {
        let list: Value = world.get(path).await.json().await.unwrap();
        assert_eq!(list["leases"].as_array().unwrap().len(), count, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxies_are_listed_in_order_with_what_is_leased() {
    let world = World::new().await;
    world.offer("dc", 2, 3);
    world.board.put(row(&offer("ext", 0, 1)));
    let lease = world.lease("dc").await;
    let report = format!("/v1/leases/{}/report", lease["id"].as_str().unwrap());
    world.post(&report, json!({"outcome": "banned", "target": "shop.example"})).await;
    world.leases.withdraw(&key("dc", 1), &offer("dc", 1, 3).uid, Absence::Unhealthy, Tell::nowhere());
    let body: Value = world.get("/v1/proxies").await.json().await.unwrap();
    let names: Vec<_> = body["proxies"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["crawl/dc-0", "crawl/dc-1", "crawl/ext-0"]);
    let first = &body["proxies"][0];
    let cooldown: jiff::Timestamp = first["cooldownUntil"].as_str().unwrap().parse().unwrap();
    assert!(cooldown > jiff::Timestamp::now());
    let expected = json!({"name": "crawl/dc-0", "phase": "Ready", "reason": "Healthy",
        "message": "the latest probe went through", "provider": null, "host": null,
        "endpoint": "http://10.0.0.1:3128", "attributes": {"tier": "dc"}, "maxLeases": 3, "leases": 1,
        "coolingTargets": 1, "cooldownUntil": first["cooldownUntil"], "exitIp": "203.0.113.9",
        "lastProbe": {"at": "2026-12-01T00:00:00.000Z", "ok": true, "latencyMs": 12, "reason": null}});
    assert_eq!(*first, expected);
    assert_eq!((&body["proxies"][2]["leases"], &body["proxies"][2]["cooldownUntil"]), (&json!(0), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_in_answers_about_single_leases_only() {
    let world = World::new().await;
    world.offer("dc", 2, 1);
    let granted = world.post("/v1/leases", json!({})).await.text().await.unwrap();
    let id = serde_json::from_str::<Value>(&granted).unwrap()["leases"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/leases/{id}");
    let shows = |text: &str| ["p@ss", "p%40ss", "u:1", "u%3A1"].iter().any(|part| text.contains(part));
    assert!(shows(&granted));
    assert!(shows(&world.post(&format!("{path}/renew"), json!({})).await.text().await.unwrap()));
    assert!(shows(&world.get(&path).await.text().await.unwrap()));
    world.post("/v1/leases", json!({})).await;
    let renew = format!("{path}/renew");
    let mut others = vec![
        ("list", world.get("/v1/leases").await),
        ("proxies", world.get("/v1/proxies").await),
        ("explain", world.get("/v1/explain?tier=dc").await),
        ("none available", world.post("/v1/leases", json!({})).await),
        ("mismatch", world.post(&renew, json!({"generation": 1})).await),
        ("bad request", world.post(&renew, json!({"ttlSeconds": 0})).await),
        ("report", world.post(&format!("{path}/report"), json!({"outcome": "banned"})).await),
    ];
    world.send(Method::DELETE, &path).send().await.unwrap();
    others.push(("gone", world.get(&path).await));
    for (what, response) in others {
        let text = response.text().await.unwrap();
        assert!(!shows(&text), "{what}: {text}");
        assert!(!text.contains("\"password\"") && !text.contains("\"username\""), "{what}: {text}");
    }
    let list: Value = world.get("/v1/leases").await.json().await.unwrap();
    assert_eq!(list["leases"][0]["proxy"]["url"], "http://10.0.0.2:3128");
}
