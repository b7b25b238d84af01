//! What the kit costs over bare ractor: messages side by side, and memory of an idle actor.
//!
//! `RESULT` lines are for the record; criterion's own output tells the spread.

#![expect(clippy::print_stdout, reason = "a bench reports")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use egress_actors::kit::actor::InitError;
use egress_actors::kit::clock::Clock;
use egress_actors::kit::{Behavior, ChildSpec, Ctx, Entry, Env, Permit, Ref, Root};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

/// As large as a usual message of the system: a few words.
enum Msg {
    Add([u64; 4]),
    Bounded([u64; 4], Permit),
    Done(Arc<Notify>),
}

egress_actors::named!(Msg: Add, Bounded, Done);

struct Sum(u64);

impl Sum {
    fn take(&mut self, message: Msg) {
        match message {
            Msg::Add(numbers) => self.0 = self.0.wrapping_add(numbers[0]),
            Msg::Bounded(numbers, permit) => {
                self.0 = self.0.wrapping_add(numbers[0]);
                drop(permit);
            }
            Msg::Done(done) => done.notify_one(),
        }
    }
}

impl Behavior for Sum {
    const KIND: &'static str = "sum";
    type Msg = Msg;
    type Args = ();

    fn init((): (), _: &mut Ctx<Msg>) -> Result<Self, InitError> {
        Ok(Self(0))
    }

    fn handle(&mut self, message: Msg, _: &mut Ctx<Msg>) {
        self.take(message);
    }
}

struct Bare;

impl Actor for Bare {
    type Msg = Msg;
    type State = Sum;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Msg>, (): ()) -> Result<Sum, ActorProcessingErr> {
        Ok(Sum(0))
    }

    async fn handle(&self, _: ActorRef<Msg>, message: Msg, state: &mut Sum) -> Result<(), ActorProcessingErr> {
        state.take(message);
        Ok(())
    }
}

/// Parent of the idle actors.
struct Many {
    _count: usize,
}

impl Behavior for Many {
    const KIND: &'static str = "many";
    type Msg = ();
    type Args = usize;

    fn init(count: usize, ctx: &mut Ctx<()>) -> Result<Self, InitError> {
        for n in 0..count {
            ctx.start(ChildSpec::of::<Sum>(format!("proxy/default/p{n}"), &Ref::new("p"), || ()));
        }
        Ok(Self { _count: count })
    }

    fn handle(&mut self, (): (), _: &mut Ctx<()>) {}
}

struct BareMany;

impl Actor for BareMany {
    type Msg = ();
    type State = Vec<ActorRef<Msg>>;
    type Arguments = usize;

    async fn pre_start(&self, myself: ActorRef<()>, count: usize) -> Result<Self::State, ActorProcessingErr> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(Actor::spawn_linked(None, Bare, (), myself.get_cell()).await?.0);
        }
        Ok(all)
    }
}

/// Messages in one burst, as when a host reports on its proxies.
const BURST: u64 = 1_000;

fn kit_sum(runtime: &Runtime) -> (Root, Ref<Msg>, Entry<Msg>) {
    runtime.block_on(async {
        let env = Env::new(Clock::System);
        let to = Ref::new("sum");
        let entry = Entry::new(&env, "sum", &to, 2_000);
        let root = Root::start(&env, ChildSpec::of::<Sum>("sum", &to, || ()));
        while !to.is_up() {
            tokio::task::yield_now().await;
        }
        (root, to, entry)
    })
}

fn messages(c: &mut Criterion, runtime: &Runtime, threads: &'static str) -> Ratio {
    let bare = runtime.block_on(async { Actor::spawn(None, Bare, ()).await.expect("no name to collide with").0 });
    let (_root, to, entry) = kit_sum(runtime);
    let done = Arc::new(Notify::new());
    let mut group = c.benchmark_group(format!("cast_and_handle/{threads}"));
    group.throughput(Throughput::Elements(BURST)).sample_size(40).measurement_time(Duration::from_secs(4));
    group.bench_function(BenchmarkId::from_parameter("ractor"), |b| {
        b.iter(|| {
            runtime.block_on(async {
                for n in 0..BURST {
                    assert!(bare.cast(Msg::Add([n; 4])).is_ok());
                }
                assert!(bare.cast(Msg::Done(done.clone())).is_ok());
                done.notified().await;
            });
        });
    });
    group.bench_function(BenchmarkId::from_parameter("kit"), |b| {
        b.iter(|| {
            runtime.block_on(async {
                for n in 0..BURST {
                    assert!(to.cast(Msg::Add([n; 4])).is_ok());
                }
                assert!(to.cast(Msg::Done(done.clone())).is_ok());
                done.notified().await;
            });
        });
    });
    group.bench_function(BenchmarkId::from_parameter("kit_bounded"), |b| {
        b.iter(|| {
            runtime.block_on(async {
                for n in 0..BURST {
                    assert!(entry.try_cast(|permit| Msg::Bounded([n; 4], permit)).is_ok());
                }
                assert!(to.cast(Msg::Done(done.clone())).is_ok());
                done.notified().await;
            });
        });
    });
    group.finish();

    // Alternating rounds in one run, so that the ratio does not hang on what else the machine does.
    let mut ratios: Vec<f64> = (0..40)
        .map(|_| {
            let bare = burst_time(runtime, &done, |message| assert!(bare.cast(message).is_ok()));
            let kit = burst_time(runtime, &done, |message| assert!(to.cast(message).is_ok()));
            kit.as_secs_f64() / bare.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let at = |tenth: usize| ratios[ratios.len() * tenth / 10];
    Ratio { threads, p10: at(1), median: at(5), p90: at(9) }
}

/// Cost of a message of ours over that of a bare one.
struct Ratio {
    threads: &'static str,
    p10: f64,
    median: f64,
    p90: f64,
}

fn tell(ratios: &[Ratio]) {
    println!("| message, kit over bare ractor | ratio | 10 % to 90 % | at most |");
    println!("|:------------------------------|------:|-------------:|--------:|");
    for Ratio { threads, p10, median, p90 } in ratios {
        println!(
            "| {:<29} | {median:>5.2} | {:>12} | {:>7} |",
            format!("threads: {threads}"),
            format!("{p10:.2} to {p90:.2}"),
            2
        );
    }
    for Ratio { threads, p10, median, p90 } in ratios {
        println!("RESULT kit_message_cost_vs_ractor threads={threads} median={median:.2} p10={p10:.2} p90={p90:.2}");
    }
}

fn burst_time(runtime: &Runtime, done: &Arc<Notify>, cast: impl Fn(Msg)) -> Duration {
    let begun = Instant::now();
    for _ in 0..50 {
        runtime.block_on(async {
            for n in 0..BURST {
                cast(Msg::Add([n; 4]));
            }
            cast(Msg::Done(done.clone()));
            done.notified().await;
        });
    }
    begun.elapsed()
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0);
    pages * 4096
}

/// How many idle actors are weighed.
const IDLE: usize = 10_000;

/// In a process of its own, so that one does not fill what the other left: prints bytes per actor.
fn weigh(kind: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let settled = || async {
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let env = Env::new(Clock::System);
        let before = resident();
        if kind == "kit" {
            let root = Root::start(&env, ChildSpec::of::<Many>("many", &Ref::new("many"), || IDLE));
            settled().await;
            assert_eq!(env.registry.len(), IDLE + 1);
            println!("{}", (resident() - before) / IDLE);
            drop(root);
        } else {
            let many = Actor::spawn(None, BareMany, IDLE).await.expect("no name to collide with");
            settled().await;
            println!("{}", (resident() - before) / IDLE);
            drop(many);
        }
    });
}

fn memory() {
    let this = std::env::current_exe().expect("the path of this program");
    let weighed = |kind: &str| -> usize {
        let out = std::process::Command::new(&this).env("KIT_WEIGH", kind).output().expect("this program starts");
        String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number")
    };
    let (kit, bare) = (weighed("kit"), weighed("ractor"));
    println!("RESULT idle_actor_bytes actors={IDLE} kit={kit} ractor={bare}");
}

/// Ends of children below many others must not cost more than below few.
fn ends(c: &mut Criterion, runtime: &Runtime) {
    let mut group = c.benchmark_group("operation_start_to_end");
    group.sample_size(20).measurement_time(Duration::from_secs(4));
    for neighbours in [0, 10_000] {
        let (root, to) = runtime.block_on(async {
            let env = Env::new(Clock::System);
            let to = Ref::new("ops");
            let root = Root::start(&env, ChildSpec::of::<Ops>("ops", &to, move || neighbours));
            while !to.is_up() || env.registry.len() < neighbours + 1 {
                tokio::task::yield_now().await;
            }
            (root, to)
        });
        let done = Arc::new(Notify::new());
        group.bench_function(BenchmarkId::from_parameter(format!("beside_{neighbours}")), |b| {
            b.iter(|| {
                runtime.block_on(async {
                    assert!(to.cast(OpsMsg::Run(done.clone())).is_ok());
                    done.notified().await;
                });
            });
        });
        runtime.block_on(root.stop_within(Duration::from_secs(30)));
    }
    group.finish();
}

/// Runs one operation after the other beside its idle children.
struct Ops {
    waiting: Option<Arc<Notify>>,
}

enum OpsMsg {
    Run(Arc<Notify>),
}

egress_actors::named!(OpsMsg: Run);

impl Behavior for Ops {
    const KIND: &'static str = "ops";
    type Msg = OpsMsg;
    type Args = usize;

    fn init(count: usize, ctx: &mut Ctx<OpsMsg>) -> Result<Self, InitError> {
        for n in 0..count {
            ctx.start(ChildSpec::of::<Sum>(format!("proxy/default/p{n}"), &Ref::new("p"), || ()));
        }
        Ok(Self { waiting: None })
    }

    fn handle(&mut self, OpsMsg::Run(done): OpsMsg, ctx: &mut Ctx<OpsMsg>) {
        use egress_actors::kit::{Reply, work};
        self.waiting = Some(done);
        let reply = Reply::new(|_: work::Done<()>| (), || work::Done::Lost);
        ctx.start(work::work("op", ctx.now().mono + Duration::from_secs(10), async {}, reply));
    }

    fn child_ended(&mut self, _: egress_actors::kit::ChildEnd, _: &mut Ctx<OpsMsg>) {
        if let Some(done) = self.waiting.take() {
            done.notify_one();
        }
    }
}

fn main() {
    if let Ok(kind) = std::env::var("KIT_WEIGH") {
        return weigh(&kind);
    }
    let mut criterion = Criterion::default().configure_from_args();
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let with_one = messages(&mut criterion, &one, "one");
    ends(&mut criterion, &one);
    let two = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let with_two = messages(&mut criterion, &two, "two");
    criterion.final_summary();
    tell(&[with_one, with_two]);
    memory();
}
