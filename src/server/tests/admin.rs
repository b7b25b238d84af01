//! The admin endpoint: what is open, what is not, and that it needs nobody's help.

use std::path::PathBuf;

use egress_actors::providers::Directory;
use futures::FutureExt;
use reqwest::Method;
use serde_json::{Value, json};

use super::*;
use crate::server::admin::{Admin, Controls, ManifestProblem};
use crate::server::health::{self, Check};

fn controls() -> Controls {
    Controls {
        metrics: Arc::new(|| "# HELP egress_leases Leases that are out.\n".to_owned()),
        reload: Arc::new(|| async { Err("providers.yaml:3: unknown field `hots`".to_owned()) }.boxed()),
        config: Arc::new(|| Err("providers.yaml:3: unknown field `hots`".to_owned())),
        log_level: Arc::new(|| "info,egress_actors=debug".to_owned()),
        set_log_level: Arc::new(|filter| if filter == "loud" { Err("must be a filter".to_owned()) } else { Ok(()) }),
        problems: Arc::new(|| {
            vec![ManifestProblem { file: PathBuf::from("px.yaml"), line: Some(4), message: "not YAML".to_owned() }]
        }),
    }
}

fn admin(env: &Arc<Env>, token: Option<&str>, checks: Vec<Check>) -> Admin {
    let tokens = Tokens::one(token.map(Into::into).as_ref());
    Admin {
        env: env.clone(),
        directory: Directory::default(),
        sweep_dry_run: true,
        tokens,
        checks,
        controls: controls(),
    }
}

struct AdminWorld {
    served: Served,
    client: Client,
}

impl AdminWorld {
    async fn new(admin: Admin) -> Self {
        crate::crypto::install();
        let client = Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().unwrap();
        Self { served: serve_here(admin.router(), Limits::default()).await, client }
    }

    fn send(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.served.url(path))
    }

    async fn get(&self, path: &str) -> Response {
        self.send(Method::GET, path).send().await.unwrap()
    }

    /// As a person in a shell gets it.
    async fn text(&self, path: &str) -> String {
        let response = self.send(Method::GET, path).header("accept", "text/plain").send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8", "{path}");
        response.text().await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tree_has_the_shape_of_the_contract() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    world.lease("dc").await;
    let admin = AdminWorld::new(admin(&world.env, None, Vec::new())).await;
    let tree: Value = admin.get("/admin/actors").await.json().await.unwrap();
    assert_eq!(
        (&tree["path"], &tree["kind"], &tree["status"]),
        (&json!("/leases"), &json!("leases"), &json!("running"))
    );
    assert_eq!(tree["mailbox"], json!({"depth": 0, "capacity": 4096}));
    assert!(tree["handled"].as_u64().unwrap() >= 2 && tree["restarts"] == 0, "{tree}");
    assert!(tree["current"].is_null() && tree["lastProgressMs"].is_u64() && tree["children"] == json!([]), "{tree}");
    let drawn = admin.send(Method::GET, "/admin/actors").header("accept", "text/plain").send().await.unwrap();
    assert!(drawn.text().await.unwrap().starts_with("/leases "));
    let nothing = AdminWorld::new(super::admin::admin(&Env::new(Clock::System), None, Vec::new())).await;
    let nothing: Value = nothing.get("/admin/actors").await.json().await.unwrap();
    assert_eq!(nothing["children"], json!([]), "{nothing}");
}

#[test]
fn it_answers_while_every_actor_and_the_main_runtime_are_busy() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (main, edge) = (runtime(), runtime());
    let world = main.block_on(World::wished(Wish { keeps_worker: true, ..Wish::default() }));
    main.block_on(world.begin_to_occupy());
    // Waited for elsewhere: a runtime without a free worker has no timers either.
    edge.block_on(world.is_occupied());
    // The main runtime's only worker is stuck in the registry; nothing else on it runs.
    let stuck = Arc::new(AtomicBool::new(true));
    let flag = stuck.clone();
    main.spawn(async move { flag.store(false, Ordering::SeqCst) });
    edge.block_on(async {
        let checks = vec![health::leases(&world.env)];
        let admin = AdminWorld::new(admin(&world.env, None, checks)).await;
        let tree: Value = admin.get("/admin/actors").await.json().await.unwrap();
        assert_eq!(tree["current"]["message"], "Call", "{tree}");
        assert!(tree["current"]["forMs"].is_u64(), "{tree}");
        for path in ["/livez", "/readyz", "/metrics", "/admin/providers", "/admin/problems"] {
            assert_eq!(admin.get(path).await.status(), 200, "{path}");
        }
    });
    assert!(stuck.load(Ordering::SeqCst), "the main runtime was not stuck: this test shows nothing");
    world.gate.open();
    main.block_on(eventually("it goes on", async || !stuck.load(Ordering::SeqCst)));
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_lists_its_checks() {
    let world = World::new().await;
    let broken = Arc::new(AtomicBool::new(false));
    let flag = broken.clone();
    let checks = vec![
        health::leases(&world.env),
        Check::needed("store", move || {
            if flag.load(Ordering::SeqCst) { Err("no space left".into()) } else { Ok("well".into()) }
        }),
        Check::informative("providers-config", || Err("line 3 is refused, the old one is in use".into())),
    ];
    let admin = AdminWorld::new(admin(&world.env, None, checks)).await;
    let ready = admin.get("/readyz").await;
    assert_eq!((ready.status().as_u16(), ready.text().await.unwrap().as_str()), (200, "ok\n"));
    let lines =
        "[+]leases: running\n[+]store: well\n[!]providers-config: line 3 is refused, the old one is in use\nready\n";
    assert_eq!(admin.get("/readyz?verbose").await.text().await.unwrap(), lines);
    broken.store(true, Ordering::SeqCst);
    for path in ["/readyz", "/readyz?verbose"] {
        let not = admin.get(path).await;
        assert_eq!(not.status(), 503);
        let text = not.text().await.unwrap();
        assert!(text.contains("[-]store: no space left\n") && text.ends_with("not ready\n"), "{text}");
    }
    assert_eq!(admin.get("/livez").await.status(), 200, "unready is not dead");
    let absent = Env::new(Clock::System);
    let absent = AdminWorld::new(super::admin::admin(&absent, None, vec![health::leases(&absent)])).await;
    assert_eq!(absent.get("/readyz").await.status(), 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_levers_do_what_they_are_lent() {
    let env = Env::new(Clock::System);
    let admin = AdminWorld::new(admin(&env, None, Vec::new())).await;
    let metrics = admin.get("/metrics").await;
    assert_eq!(metrics.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(metrics.text().await.unwrap().contains("egress_leases"));
    let refused = problem(admin.send(Method::POST, "/admin/reload").send().await.unwrap()).await;
    assert_eq!(
        (refused.0, refused.1.as_str(), refused.2.as_str()),
        (422, "reload_refused", "providers.yaml:3: unknown field `hots`")
    );
    let level = |text: &'static str| admin.send(Method::PUT, "/admin/log-level").body(text).send();
    assert_eq!(level("info,egress_actors=debug\n").await.unwrap().status(), 204);
    for (text, expected) in [("loud", "body: `loud` given, must be a filter"), (" ", "body: is empty")] {
        let (status, code, detail) = problem(level(text).await.unwrap()).await;
        assert_eq!((status, code.as_str()), (400, "bad_request"));
        assert!(detail.starts_with(expected), "{detail}");
    }
    let binary = admin.send(Method::PUT, "/admin/log-level").body(&b"\xff"[..]).send().await.unwrap();
    assert_eq!(problem(binary).await.2, "body: must be UTF-8");
    let huge = admin.send(Method::PUT, "/admin/log-level").body("x".repeat(9000)).send().await.unwrap();
    assert_eq!(problem(huge).await.1, "body_too_large");
    let problems: Value = admin.get("/admin/problems").await.json().await.unwrap();
    assert_eq!(problems, json!({"problems": [{"file": "px.yaml", "line": 4, "message": "not YAML"}]}));
    let providers: Value = admin.get("/admin/providers").await.json().await.unwrap();
    let config = json!({"accepted": false, "message": "providers.yaml:3: unknown field `hots`"});
    assert_eq!(providers, json!({"config": config, "providers": []}));
    let table = admin.text("/admin/providers").await;
    assert!(table.starts_with("NAME  TYPE  READY ") && table.contains("\nconfig: providers.yaml:3: "), "{table}");
    assert!(table.ends_with("\nsweep: a dry run, no orphan is deleted\n"), "{table}");
    let post = admin.send(Method::POST, "/admin/log-level").send().await.unwrap();
    let mut allow: Vec<_> = post.headers()["allow"].to_str().unwrap().split(',').map(str::to_owned).collect();
    allow.sort();
    assert_eq!(allow, ["GET", "HEAD", "PUT"]);
    assert_eq!(problem(post).await.1, "method_not_allowed");
    let filter: Value = admin.get("/admin/log-level").await.json().await.unwrap();
    assert_eq!(filter, json!({"filter": "info,egress_actors=debug"}));
    assert_eq!(admin.text("/admin/log-level").await, "info,egress_actors=debug\n");
    assert_eq!(problem(admin.get("/admin/nothing").await).await.1, "no_such_route");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_names_what_there_is() {
    let admin = AdminWorld::new(admin(&Env::new(Clock::System), None, Vec::new())).await;
    let index: Value = admin.get("/admin").await.json().await.unwrap();
    assert_eq!(admin.get("/admin/").await.json::<Value>().await.unwrap(), index);
    let text = admin.text("/admin/").await;
    assert_eq!(admin.text("/admin").await, text);
    let endpoints = index["endpoints"].as_array().unwrap();
    assert_eq!(text.lines().count(), endpoints.len());
    for (endpoint, line) in endpoints.iter().zip(text.lines()) {
        let part = |name: &str| endpoint[name].as_str().unwrap();
        let (method, path) = (part("method"), part("path"));
        let named = line.starts_with(method) && line.contains(&format!(" {path} ")) && line.ends_with(part("about"));
        assert!(named, "{line} is not {endpoint}");
        let response = admin.send(method.parse().unwrap(), path).send().await.unwrap();
        assert!(!matches!(response.status().as_u16(), 404 | 405), "{method} {path}: {}", response.status());
    }
    for route in ["actors", "providers", "problems", "reload", "log-level"] {
        assert!(text.contains(&format!(" /admin/{route} ")), "{route} is missing in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_are_open_and_the_rest_asks_for_the_token() {
    let env = Env::new(Clock::System);
    let closed = AdminWorld::new(admin(&env, Some("root"), Vec::new())).await;
    let paths = [
        (Method::GET, "/admin/actors"),
        (Method::GET, "/admin/providers"),
        (Method::GET, "/admin/problems"),
        (Method::POST, "/admin/reload"),
        (Method::GET, "/admin/log-level"),
        (Method::PUT, "/admin/log-level"),
        (Method::GET, "/admin"),
        (Method::GET, "/admin/"),
        (Method::GET, "/admin/nothing"),
    ];
    for (method, path) in paths.clone() {
        let response = closed.send(method.clone(), path).send().await.unwrap();
        assert_eq!(problem(response).await.1, "unauthenticated", "{method} {path}");
    }
    assert_eq!(closed.send(Method::GET, "/admin/actors").bearer_auth("root").send().await.unwrap().status(), 200);
    let local = AdminWorld::new(admin(&env, None, Vec::new())).await;
    for (method, path) in paths {
        let response = local.send(method.clone(), path).header("host", "operator.example").send().await.unwrap();
        assert_eq!(problem(response).await.1, "out_of_scope", "{method} {path}");
    }
    for server in [&closed, &local] {
        for path in ["/livez", "/readyz", "/metrics"] {
            let response = server.send(Method::GET, path).header("host", "10.0.0.7:8080").send().await.unwrap();
            assert_eq!(response.status(), 200, "{path}");
        }
    }
}
