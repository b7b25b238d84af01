//! Many crawlers at once.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::json;

use super::manifest::external;
use super::site::Site;
use super::squids::OwnSquid;

#[tokio::test]
async fn of_two_hundred_concurrent_requests_for_twenty_proxies_exactly_twenty_succeed() {
    let Some(site) = Site::new() else { return };
    let Some(squid) = OwnSquid::open() else { return };
    let names: Vec<_> = (0..20).map(|n| format!("px-{n}")).collect();
    site.apply_each(names.iter().map(String::as_str), |name| external(name, squid.port).attribute("tier", "dc"));
    // It matches nobody's wish, and is in nobody's breakdown.
    site.apply("other.yaml", &external("other", squid.port).attribute("tier", "other").yaml());
    let operator = site.operator().start().await;
    let api = &operator.api;
    api.all_ready(21).await;

    let body = json!({"selectors": [{"tier": "dc"}], "ttlSeconds": 600});
    let answers = join_all((0..200).map(|_| api.call(reqwest::Method::POST, "/v1/leases", Some(&body)))).await;
    let (granted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(status, _)| *status == 201);
    let holders: BTreeSet<_> =
        granted.iter().map(|(_, answer)| answer["leases"][0]["proxy"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!((granted.len(), holders.len(), refused.len()), (20, 20, 180));
    let numbers = |answer: &serde_json::Value| {
        ["matching", "healthy", "leasedOut", "available", "coolingDown", "bannedForTarget", "provisioning", "unhealthy"]
            .map(|name| answer[name].as_u64().unwrap())
    };
    for (status, answer) in &refused {
        assert_eq!((*status, &answer["code"]), (409, &"none_available".into()), "{answer}");
        assert_eq!(numbers(answer), [20, 20, 20, 0, 0, 0, 0, 0], "{answer}");
        let next = answer["nextFreeInSeconds"].as_u64().unwrap();
        assert!((500..=600).contains(&next), "{answer}");
    }
    let granted_total = api.count("egress_lease_grants_total{outcome=\"granted\"}").await;
    let refused_total = api.count("egress_lease_grants_total{outcome=\"none_available\"}").await;
    assert!((granted_total - 20.0).abs() < 0.5 && (refused_total - 180.0).abs() < 0.5);

    // One that comes back is granted once.
    api.release(&granted[0].1["leases"][0]).await;
    let answers = join_all((0..20).map(|_| api.call(reqwest::Method::POST, "/v1/leases", Some(&body)))).await;
    assert_eq!(answers.iter().filter(|(status, _)| *status == 201).count(), 1);
}
