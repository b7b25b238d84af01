//! Bad input: each gets its clear error, which names the field, and nothing is leased.

use reqwest::Method;
use serde_json::{Value, json};

use super::*;

const JSON: &str = "application/json";

/// Sends bytes as they are.
async fn raw(world: &World, path: &str, kind: &str, body: impl Into<reqwest::Body>) -> (u16, String, String) {
    let request = world.send(Method::POST, path).header("content-type", kind).body(body);
    problem(request.send().await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_asks_in_json_name_the_field() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let many = |count: usize| (0..count).map(|at| (format!("k{at}"), json!("v"))).collect::<serde_json::Map<_, _>>();
    let rows: Vec<(Value, &str)> = vec![
        (json!({"ttlSeconds": 0}), "ttlSeconds: `0` given, must be 1 to 3600 seconds (--max-lease-ttl)"),
        (json!({"ttlSeconds": 3601}), "ttlSeconds: `3601` given, must be 1 to 3600"),
        (json!({"ttlSeconds": u64::MAX}), "ttlSeconds: `18446744073709551615` given"),
        (json!({"ttlSeconds": -1}), "ttlSeconds: invalid value: integer `-1`"),
        (json!({"ttlSeconds": 1.5}), "ttlSeconds: invalid type: floating point"),
        (json!({"ttlSeconds": "60"}), "ttlSeconds: invalid type: string"),
        (json!({"ttl": 60}), "ttl: unknown field `ttl`, expected one of"),
        (json!({"selector": {"tier": "dc"}}), "selector: unknown field"),
        (json!({"selectors": {"tier": "dc"}}), "selectors: invalid type: map, expected a sequence"),
        (json!({"selectors": ["dc"]}), "selectors[0]: invalid type: string"),
        (json!({"selectors": [{}, {"tier": 5}]}), "selectors[1].tier: invalid type: integer `5`, expected a string"),
        (
            json!({"selectors": [{"ttl": "5"}]}),
            "selectors[0]: `ttl` given, as a key of a selector, but it is a parameter",
        ),
        (json!({"selectors": [{"exclude": "a"}]}), "selectors[0]: `exclude` given"),
        (json!({"selectors": [{"": "a"}]}), "selectors[0]: `` given, as a key of a selector, must be 1 to 63"),
        (json!({"selectors": [{"a b": "a"}]}), "selectors[0]: `a b` given, as a key"),
        (json!({"selectors": [{"tier": "x".repeat(64)}]}), "selectors[0].tier: `xxx"),
        (json!({"selectors": [{"tier": "d\0c"}]}), "selectors[0].tier: `d\\0c` given, must be at most 63 printable"),
        (json!({"selectors": vec![json!({}); 17]}), "selectors: 17 entries given, must be at most 16"),
        (json!({"selectors": [many(33)]}), "selectors[0]: 33 entries given, must be at most 32"),
        (json!({"target": "https://shop.example/"}), "target: `https://shop.example/` given, must be a host name"),
        (json!({"target": "shop.example:443"}), "target: `shop.example:443` given"),
        (json!({"target": ""}), "target: `` given"),
        (json!({"target": "a\0b"}), "target: `a\\0b` given"),
        (json!({"target": 7}), "target: invalid type"),
        (json!({"session": "user-42"}), "session: `user-42` given, but this version has no sessions"),
        (json!({"count": 0}), "count: `0` given, must be 1 to 100"),
        (json!({"count": 101}), "count: `101` given, must be 1 to 100"),
        (json!({"partial": "yes"}), "partial: invalid type: string \"yes\", expected a boolean"),
        (json!({"owner": ""}), "owner: `` given, must be 1 to 128 printable characters"),
        (json!({"owner": "x".repeat(129)}), "owner: `xxx"),
        (json!({"owner": "a\nb"}), "owner: `a\\nb` given"),
        (json!({"exclude": ["px-3"]}), "exclude[0]: `px-3` given, must be written `namespace/name`"),
        (json!({"exclude": ["crawl/a", "crawl/B"]}), "exclude[1]: `B` given"),
        (json!({"exclude": vec!["crawl/a"; 1001]}), "exclude: 1001 entries given, must be at most 1000"),
        (json!([]), "body: must be a JSON object"),
        (json!("tier=dc"), "body: must be a JSON object"),
        (json!(null), "body: must be a JSON object"),
    ];
    for (body, expected) in rows {
        let shown = body.to_string().chars().take(80).collect::<String>();
        let response = world.post("/v1/leases", body).await;
        let (status, code, detail) = problem(response).await;
        assert_eq!((status, code.as_str()), (400, "bad_request"), "{shown}: {detail}");
        assert!(detail.starts_with(expected), "{shown}: {detail}");
    }
    assert_eq!(world.out().await, 0);
    assert_eq!(world.lease("dc").await["state"], "active", "and it still works");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_asks_in_one_line_name_the_key() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    for (query, expected) in [
        ("ttl=0", "ttl: `0` given, must be 1 to 3600"),
        ("ttl=60s", "ttl: `60s` given, must be a whole number of seconds"),
        ("ttl=1e3", "ttl: `1e3` given"),
        ("ttl=", "ttl: `` given"),
        ("ttl=5&ttl=6", "ttl: given twice"),
        ("count=-1", "count: `-1` given, must be a whole number"),
        ("count=1000", "count: `1000` given, must be 1 to 100"),
        ("partial=1", "partial: `1` given, must be true or false"),
        ("target=http://shop.example", "target: `http://shop.example` given"),
        ("session=a", "session: `a` given"),
        ("owner=%00", "owner: `\\0` given, must be UTF-8 without control characters"),
        ("exclude=px-3", "exclude[0]: `px-3` given"),
        ("exclude=", "exclude[0]: `` given"),
        ("tier=dc&tier=residential", "tier: given twice"),
        ("tier=%FF", "tier: `\u{fffd}` given, must be UTF-8"),
        ("ti%FFer=dc", "query: `ti\u{fffd}er` given, as a key"),
        ("=dc", "query: `` given, as a key"),
        ("a%20b=c", "query: `a b` given, as a key of a selector"),
    ] {
        for (method, path) in [(Method::POST, "/v1/leases"), (Method::GET, "/v1/explain")] {
            let response = world.send(method, &format!("{path}?{query}")).send().await.unwrap();
            let (status, code, detail) = problem(response).await;
            assert_eq!((status, code.as_str()), (400, "bad_request"), "{query}: {detail}");
            assert!(detail.starts_with(expected), "{query}: {detail}");
        }
    }
    let both = world.post("/v1/leases?tier=dc", json!({"ttlSeconds": 5})).await;
    assert!(problem(both).await.2.starts_with("query: given together with a body"));
    for (path, expected) in [
        ("/v1/leases?tier=dc", "query: `tier` given, as a key, only owner is known here"),
        ("/v1/leases?owner=a&owner=b", "owner: given twice"),
        ("/v1/leases?owner=", "owner: `` given"),
    ] {
        let (status, _, detail) = problem(world.get(path).await).await;
        assert!(status == 400 && detail.starts_with(expected), "{path}: {status} {detail}");
    }
    assert_eq!(world.out().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_renewals_and_reports_name_the_field() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let path = format!("/v1/leases/{}", world.lease("dc").await["id"].as_str().unwrap());
    for (verb, body, expected) in [
        ("renew", json!({"ttlSeconds": 0}), "ttlSeconds: `0` given"),
        ("renew", json!({"ttlSeconds": 86400}), "ttlSeconds: `86400` given, must be 1 to 3600"),
        ("renew", json!({"generation": "7"}), "generation: invalid type: string"),
        ("renew", json!({"ttl": 5}), "ttl: unknown field"),
        ("report", json!({}), "body: missing field `outcome`"),
        (
            "report",
            json!({"outcome": "dead"}),
            "outcome: `dead` given, must be one of ok, banned, captcha, rate_limited",
        ),
        ("report", json!({"outcome": "ok", "target": "a/b"}), "target: `a/b` given"),
        ("report", json!({"outcome": "ok", "httpStatus": 42}), "httpStatus: `42` given, must be 100 to 999"),
        ("report", json!({"outcome": "ok", "latencyMs": -5}), "latencyMs: invalid value"),
        ("report", json!({"outcome": "ok", "release": "yes"}), "release: invalid type"),
        ("report", json!({"outcome": "ok", "status": 403}), "status: unknown field"),
    ] {
        let (status, code, detail) = problem(world.post(&format!("{path}/{verb}"), body).await).await;
        assert_eq!((status, code.as_str()), (400, "bad_request"), "{detail}");
        assert!(detail.starts_with(expected), "{detail}");
    }
    assert_eq!(world.out().await, 1, "the lease is untouched");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_is_refused_before_anything_is_leased() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    for (body, expected) in [
        (&b"{"[..], "body: EOF while parsing"),
        (b"{}{}", "body: trailing characters"),
        (b"{\"count\":1,\"count\":1}", "body: duplicate field `count`"),
        (b"{\"owner\":\"\xff\"}", "owner: invalid unicode"),
        (b"{\"target\":\"a\0b\"}", "target: control character"),
        (b"\xff\xfe", "body: "),
        (b"tier=dc", "body: must be a JSON object"),
        (b" ", "body: must be a JSON object"),
    ] {
        let (status, code, detail) = raw(&world, "/v1/leases", JSON, body).await;
        assert_eq!((status, code.as_str()), (400, "bad_request"), "{}", body.escape_ascii());
        assert!(detail.starts_with(expected), "{}: {detail}", body.escape_ascii());
    }
    let deep = "[".repeat(60_000);
    assert_eq!(raw(&world, "/v1/leases", JSON, deep).await.0, 400);
    for kind in ["application/x-www-form-urlencoded", "text/plain", "application/json; charset=latin1"] {
        let (status, code, detail) = raw(&world, "/v1/leases", kind, "{}").await;
        assert_eq!((status, code.as_str()), (415, "unsupported_media_type"));
        assert!(detail.starts_with(&format!("content-type: `{kind}` given")), "{detail}");
    }
    let bare = world.send(Method::POST, "/v1/leases").body("{}").send().await.unwrap();
    assert!(problem(bare).await.2.starts_with("content-type: `none` given"));
    let utf8 = world.send(Method::POST, "/v1/leases").header("content-type", "application/json; charset=UTF-8");
    assert_eq!(utf8.body("{}").send().await.unwrap().status(), 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_body_is_refused_with_and_without_a_length() {
    let world = World::new().await;
    let huge = || format!("{{\"owner\":\"{}\"}}", "x".repeat(70 * 1024));
    let (status, code, detail) = raw(&world, "/v1/leases", JSON, huge()).await;
    assert_eq!(
        (status, code.as_str(), detail.as_str()),
        (413, "body_too_large", "the body is larger than 65536 bytes")
    );
    // What comes next on a connection that is kept is not sent into one that is being closed.
    let refused =
        world.send(Method::POST, "/v1/leases").header("content-type", JSON).body(huge()).send().await.unwrap();
    assert_eq!(refused.headers()["connection"], "close");
    let mut stream = world.served.connect().await;
    let head = "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    write(&mut stream, &format!("{head}{:x}\r\n{}\r\n0\r\n\r\n", huge().len(), huge())).await;
    let answer = read_to_close(&mut stream, Duration::from_secs(5)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("body_too_large"), "{answer}");
}
