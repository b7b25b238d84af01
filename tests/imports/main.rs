//! Who may import whom: the tables behind `docs/architecture.md`, checked in the sources of both packages.
//!
//! Every path counts, wherever it stands ([`names`]), in every module that is built without tests ([`tree`]). Tests and
//! benches may name everything. What a module shows to others at all is the compiler's business: that only handles go
//! down, and that messages stay in their file, is said by `pub` there.

mod names;
mod tables;
mod tree;

use std::collections::BTreeSet;
use std::path::Path;

use tables::Tables;
use tree::Module;

/// A layer of `actors/`, and what it may name of the others. Each may name only what stands above it, so that no two
/// name each other; "everything" is everything above.
const ACTORS: &str = "
    domain    <- nothing
    names     <- nothing
    ports     <- domain
    kit       <- domain::clock                  -- one reading of both clocks; it knows nothing of proxies

    board     <- domain
    standing  <- domain
    election  <- domain, ports, kit, names
    events    <- domain, ports, kit, names, election::Claim
    records   <- domain, ports, kit, names, election::Claim
    leases    <- domain, ports, kit, names, election::Claim
    probes    <- domain, ports, kit, names, standing
    host      <- domain, ports, kit, names, election::Claim

    sweep     <- domain, ports, kit, names, election::Claim, host, events::EventsHandle

    provider  <- domain, ports, kit, names, election::Claim, host, sweep
    provider  <- events::EventsHandle, records::RecordsHandle, standing::Standing
    providers <- domain, ports, kit, names, election::Claim, host::HostHandle, provider, sweep
    providers <- events::EventsHandle, records::RecordsHandle, standing
    proxy     <- domain, ports, kit, names, election::Claim, board, host
    proxy     <- leases::LeasesHandle, probes::ProbesHandle, events::EventsHandle, records::RecordsHandle
    proxy     <- probes::Track                  -- what the pool is told
    proxy     <- providers::Directory, providers::EntryCard -- the cell in which it finds an entry's hosts
    proxies   <- domain, ports, kit, names, proxy
    proxies   <- board::ProxyView               -- the recorded status of what starts is shown there
    watch     <- domain, ports, kit, names, proxies::ProxiesHandle, leases::LeasesHandle
    fleet     <- domain, ports, kit, names, election::Claim
    operator  <- everything
    testkit   <- everything
";

/// The same for the root package, where `actors` is the other one.
const ROOT: &str = "
    causes     <- nothing
    crypto     <- nothing
    args       <- actors::domain
    config     <- actors::domain, actors::names, args    -- it is made of the raw flags
    telemetry  <- actors::domain, actors::names, args    -- format and level of the log are parsed with the flags

    crd        <- actors::domain, actors::ports
    standalone <- actors::domain, actors::ports, actors::names, crd
    k8s        <- actors::domain, actors::ports, actors::names, crd
    k8s        <- causes
    k8s        <- actors::kit::supervisor, actors::kit::task   -- its writer of events is a supervised task
    dns        <- actors::domain, actors::names
    echo       <- nothing
    probe      <- actors::domain, actors::ports, actors::names, dns, echo::EXIT_ADDRESS
    providers  <- actors::domain, actors::ports, actors::names
    providers  <- causes
    providers  <- config::providers                      -- a backend takes its entry as it was parsed
    providers  <- dns                                    -- names of hosts are looked up with a limit

    server     <- actors::domain, actors::ports, actors::names, actors::board
    server     <- actors::leases, actors::operator::Handles
    server     <- actors::kit::tree, actors::kit::stat, actors::kit::CallError
    server     <- actors::kit::Env                       -- the tree is drawn from it, and the clock read
    server     <- actors::kit::task                      -- its listeners are supervised tasks
    server     <- actors::election::Claim, actors::election::ClaimState
    server     <- actors::watch::WatchHandle, actors::watch::SourceState
    server     <- actors::providers::Directory, actors::providers::EntryCard    -- cells that it shows
    server     <- actors::sweep::Swept, actors::sweep::HostSwept                -- another one
    run        <- everything
    main       <- everything
";

/// What is built on, and who alone may name it.
const ALONE: &str = "
    ractor                                 <- actors::kit
    axum                                   <- root::server, root::echo, root::run
    tower, tower_http, hyper_util          <- root::server, root::echo
    kube                                   <- root::crd, root::k8s, root::providers::kubernetes
    schemars                               <- root::crd
    hickory_resolver                       <- root::dns
    redb                                   <- root::standalone
    virt, russh, hadris_iso, quick_xml, reqwest, tempfile <- root::providers::libvirt
    clap                                   <- root::args
";

/// Who must not name what. Cargo alone does not keep `tokio::net` out of `actors/`: built with the root package, tokio
/// has all that the root asks for.
const NEVER: &str = "
    actors::domain <- tokio, futures, async_trait, tracing, metrics, dashmap, std::thread
    actors::domain <- Instant::now, SystemTime::now, std::time::Instant::now, std::time::SystemTime::now
    actors                        <- tokio::net, tokio::fs, tokio::process, tokio::io, tokio::signal
    actors                        <- std::fs, std::env, std::process, std::os, std::io
    actors                        <- std::net::TcpStream, std::net::TcpListener, std::net::UdpSocket
";

/// Macros stand at the root of their crate; this is where they are written.
const MACROS: &str = "
    actors::named             <- actors::kit
    actors::conformance_tests <- actors::testkit
";

/// Crates that touch the world: `actors/` has none of them, nor has anything that it depends on.
const WORLDLY: [&str; 10] =
    ["kube", "kube-client", "k8s-openapi", "axum", "hyper", "reqwest", "rustls", "virt", "russh", "redb"];

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Module> {
    [("actors", "actors/src/lib.rs"), ("root", "src/lib.rs"), ("root::main", "src/main.rs")]
        .iter()
        .flat_map(|(krate, file)| tree::modules(workspace(), krate, file))
        .collect()
}

#[test]
fn no_module_names_what_its_layer_may_not() {
    let tables = Tables::read();
    let found: Vec<_> = sources().iter().flat_map(|module| tables.forbidden(module)).collect();
    assert!(found.is_empty(), "see the tables in tests/imports/main.rs:\n  {}", found.join("\n  "));
}

#[test]
fn every_layer_has_its_row_and_every_row_its_layer() {
    let built: BTreeSet<_> = sources().iter().filter_map(Module::layer).collect();
    let written: BTreeSet<_> = Tables::read().layers().map(ToOwned::to_owned).collect();
    assert_eq!(built, written);
}

#[test]
fn a_layer_may_name_only_what_stands_above_it() {
    assert_eq!(Tables::read().upside_down(), Vec::<String>::new());
}

#[test]
fn nothing_that_touches_the_world_is_below_the_actors() {
    let lock = std::fs::read_to_string(workspace().join("Cargo.lock")).unwrap();
    let below = tree::below("egress-actors", &lock);
    assert!(below.contains("tokio") && below.contains("ractor"), "Cargo.lock was not understood: {below:?}");
    let worldly: Vec<_> = WORLDLY.iter().filter(|name| below.contains(**name)).collect();
    assert!(worldly.is_empty(), "egress-actors depends on {worldly:?}");
    // The other package does: the names are those that Cargo.lock uses.
    let below = tree::below("egress-proxies-operator", &lock);
    for name in ["kube", "k8s-openapi", "axum", "hyper", "reqwest", "rustls", "redb"] {
        assert!(below.contains(name), "{name} is not in Cargo.lock under this name");
    }
}

/// What is found in a module with this source.
fn found_in(module: &str, source: &str) -> Vec<String> {
    Tables::read().forbidden(&tree::parsed(module, "x.rs", source))
}

#[test]
fn a_forbidden_name_is_found_wherever_it_stands() {
    let refused = [
        ("actors::domain::plan", "use crate::kit::Ctx;", "actors::kit::Ctx"),
        ("actors::domain::plan", "use crate::{domain::id::Uid, ports::{Event, Secrets}};", "actors::ports::Secrets"),
        ("actors::domain", "pub use crate::ports as doors;", "actors::ports"),
        ("actors::domain::plan", "use super::super::kit::*;", "actors::kit::*"),
        ("actors::domain", "use crate::*;", "actors::*"),
        ("actors::host", "use crate as all;", "actors"),
        ("actors::host", "fn f() { crate::proxy::Wires::new(); }", "actors::proxy::Wires::new"),
        ("actors::host", "fn f(x: Vec<Option<crate::leases::LeasesHandle>>) {}", "actors::leases::LeasesHandle"),
        ("actors::host", "fn f() { info!(\"{}\", [crate::watch::X]); }", "actors::watch::X"),
        ("actors::kit", "macro_rules! m { ($a:ident) => { $crate::ports::$a() } }", "actors::ports"),
        ("actors::kit", "mod inside { use super::super::domain::plan::plan; }", "actors::domain::plan::plan"),
        ("actors::kit", "crate::conformance_tests!(x);", "actors::testkit::conformance_tests"),
        ("actors::kit", "#[derive(crate::names::D)] struct X;", "actors::names::D"),
        ("actors::proxy", "use crate::providers::{Directory, ProvidersHandle};", "actors::providers::ProvidersHandle"),
        ("actors::leases", "use ractor::Actor;", "ractor::Actor"),
        ("actors::domain", "async fn f() { tokio::time::sleep(d).await; }", "tokio::time::sleep"),
        ("actors::domain", "fn f() { let now = Instant::now(); }", "Instant::now"),
        ("actors::host", "use tokio::{net, sync};", "tokio::net"),
        ("actors::host", "fn f() { std::process::Command::new(\"sh\"); }", "std::process::Command::new"),
        ("root::standalone", "use crate::server::Tls;", "root::server::Tls"),
        ("root::standalone", "use egress_actors::leases::LeasesHandle;", "actors::leases::LeasesHandle"),
        ("root::crd", "use crate::run::run;", "root::run::run"),
        ("root::server::dto", "use egress_actors::kit::Root;", "actors::kit::Root"),
        ("root::config", "fn f() { axum::Router::new(); }", "axum::Router::new"),
    ];
    for (module, source, name) in refused {
        let found = found_in(module, source);
        assert!(found.iter().any(|line| line.ends_with(&format!(" names {name}"))), "{module}: {source}: {found:?}");
    }
}

#[test]
fn an_allowed_name_is_not_held_against_a_module() {
    let allowed = [
        ("actors::domain::plan", "use super::super::domain::id::Uid; use crate::domain::health::Probed;"),
        ("actors::domain", "use std::time::{Duration, Instant}; fn f(now: Instant) {}"),
        ("actors::domain", "/// Not [`crate::kit`].\nconst X: &str = \"crate::kit::X\"; // crate::ports"),
        ("actors::domain", "#[cfg(test)] use crate::kit; #[cfg(test)] mod tests { use crate::ports::Event; }"),
        (
            "actors::domain",
            "#[cfg(test)] fn f() { crate::kit::x(); } pub(crate) struct X; pub(in crate::domain) struct Y;",
        ),
        ("actors::kit", "use crate::domain::clock::Now; use ractor::Actor; crate::named!(Msg: A);"),
        ("actors::host", "crate::named!(Msg: A); fn f() { crate::kit::work::work(); }"),
        ("actors::operator", "use crate::{fleet, proxies}; use crate::watch::WatchHandle;"),
        ("root::server", "use egress_actors::kit::tree::{self, TreeNode}; use axum::Router; use super::server::dto;"),
        ("root::main", "use egress_operator::{run, telemetry};"),
    ];
    for (module, source) in allowed {
        assert_eq!(found_in(module, source), Vec::<String>::new(), "{module}: {source}");
    }
}
