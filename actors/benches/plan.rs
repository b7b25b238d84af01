//! What one decision costs: it is made after every message of every Proxy.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use criterion::{Criterion, criterion_group, criterion_main};
use egress_actors::domain::clock::Now;
use egress_actors::domain::desired::{Desired, Endpoint, Scheme};
use egress_actors::domain::error::OpError;
use egress_actors::domain::health::{FailureDomain, Probed, Sample, TargetGuard, Verdict};
use egress_actors::domain::id::{HostName, ProviderName, Uid};
use egress_actors::domain::instance::{Instance, InstanceState};
use egress_actors::domain::plan::{HostFacts, Observed, ProviderFacts, ProviderSeen, Settings, plan};
use egress_actors::domain::status::LastProbe;
use egress_actors::testkit::world::managed;
use url::Url;

fn wished() -> Desired {
    Desired {
        attributes: Arc::default(),
        finalizer: true,
        host: Some(HostName::parse("a").expect("valid")),
        ..managed("px-1", "kvm")
    }
}

fn turn(desired: &Desired, seen: &mut Observed, settings: &Settings, now: Now) {
    let next = plan(desired, seen, settings, now);
    seen.on_planned(desired, &next, now);
}

fn healthy(now: Now) -> Probed {
    Probed {
        verdict: Verdict::Healthy,
        probe: LastProbe { at: now.wall, ok: true, latency: Duration::from_millis(12), reason: None },
        blame: None,
        exit_ip: Some("203.0.113.9".into()),
    }
}

fn fresh(desired: &Desired, settings: &Settings, now: Now) -> Observed {
    let mut seen = Observed::new(desired, None, settings, now);
    seen.on_claim(true);
    seen.on_provider(ProviderSeen::Configured(ProviderFacts {
        revision: 1,
        hosts: Arc::from([HostFacts { name: HostName::parse("a").expect("valid"), ids: "kvm://kvm/a/".into() }]),
        settle: Duration::from_secs(20),
        address_timeout: Duration::from_mins(5),
        may_generate_credentials: false,
    }));
    seen
}

fn live_once(desired: &Desired, settings: &Settings, now: Now) -> Observed {
    let mut seen = fresh(desired, settings, now);
    turn(desired, &mut seen, settings, now);
    seen.on_get(Err(OpError::not_found("no such domain")), now);
    turn(desired, &mut seen, settings, now);
    let instance = Instance {
        provider_id: "kvm://kvm/a/1".into(),
        state: InstanceState::Running,
        endpoint: Some(Endpoint { scheme: Scheme::Http, host: "10.0.0.9".into(), port: 3128 }),
        generated: None,
        outdated: None,
        created_at: None,
        complaint: None,
    };
    seen.on_create(Ok(instance), now);
    turn(desired, &mut seen, settings, now);
    seen.on_probed(healthy(now), now);
    turn(desired, &mut seen, settings, now);
    seen
}

fn decisions(c: &mut Criterion) {
    let now = Now { mono: Instant::now(), wall: SystemTime::UNIX_EPOCH };
    let (desired, settings) = (wished(), Settings::default());
    let new = fresh(&desired, &settings, now);
    let ready = live_once(&desired, &settings, now);
    c.bench_function("plan/new", |b| b.iter(|| plan(black_box(&desired), black_box(&new), &settings, now)));
    c.bench_function("plan/ready", |b| b.iter(|| plan(black_box(&desired), black_box(&ready), &settings, now)));
    c.bench_function("plan/probe_and_turn", |b| {
        let mut seen = ready.clone();
        b.iter(|| {
            seen.on_probed(healthy(now), now);
            turn(&desired, &mut seen, &settings, now);
        });
    });
    c.bench_function("plan/birth_to_ready", |b| b.iter(|| live_once(black_box(&desired), &settings, now)));
}

fn guard(c: &mut Criterion) {
    // A probe must cost the same however many Proxies share its target.
    for fleet in [100_usize, 10_000] {
        let target = Arc::new(Url::parse("https://target.example/204").expect("valid"));
        let entry = ProviderName::parse("kvm").expect("valid");
        let proxies: Vec<_> = (0..fleet)
            .map(|n| {
                let host = HostName::parse(&format!("h{}", n % 50)).expect("valid");
                (Uid::parse(&format!("uid-{n}")).expect("valid"), FailureDomain::Host(entry.clone(), host))
            })
            .collect();
        let mut guard = TargetGuard::new(Duration::from_mins(2));
        let (mut n, mut now) = (0, Instant::now());
        c.bench_function(&format!("guard/probe/{fleet}"), |b| {
            b.iter(|| {
                let (uid, domain) = &proxies[n % fleet];
                let sample = if n.is_multiple_of(3) { Sample::TargetFault } else { Sample::NotTarget };
                guard.on_probe(&target, domain, uid, sample, now);
                (n, now) = (n + 1, now + Duration::from_secs(30) / u32::try_from(fleet).expect("small"));
                guard.suspicion(&target)
            });
        });
    }
}

criterion_group!(benches, decisions, guard);
criterion_main!(benches);
