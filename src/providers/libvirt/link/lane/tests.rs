//! Lanes over a daemon of a few lines, which speaks as much of libvirt's protocol as an open needs, and answers what it is
//! told to (T3). The threads of each test are known by their kind of lane, so no two tests take the same.

use std::fs;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::watch;

use super::super::bridge::SocketDir;
use super::*;

const SOON: Duration = Duration::from_millis(200);
const AMPLE: Duration = Duration::from_secs(20);

/// Numbers of `remote_protocol.x`.
mod call {
    pub(super) const OPEN: u32 = 1;
    pub(super) const CLOSE: u32 = 2;
    pub(super) const SUPPORTS_FEATURE: u32 = 60;
    pub(super) const AUTH_LIST: u32 = 66;
}

/// Answers what belongs to an open and a close at once, and everything else once `answers` says so.
async fn daemon(mut stream: DuplexStream, mut answers: watch::Receiver<bool>) {
    loop {
        let mut head = [0; 28];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (length, procedure, serial) = (word(0), word(12), word(20));
        stream.read_exact(&mut vec![0; length as usize - head.len()]).await.unwrap();
        let body: &[u32] = match procedure {
            call::OPEN | call::CLOSE => &[],
            // None is needed; nothing is supported.
            call::AUTH_LIST | call::SUPPORTS_FEATURE => &[0],
            // A number of 64 bits: of a version.
            _ => {
                if answers.wait_for(|answers| *answers).await.is_err() {
                    return;
                }
                &[0, 9_000_000]
            }
        };
        let words = [28 + 4 * u32::try_from(body.len()).unwrap(), word(4), word(8), procedure, 1, serial, 0];
        let reply: Vec<u8> = words.iter().chain(body).flat_map(|word| word.to_be_bytes()).collect();
        if stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}

/// What a generation said to its link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Late,
    Lost,
    Back { broken: bool },
    Abandoned(bool),
}

struct Hears {
    said: Mutex<Vec<Said>>,
    cuts: bool,
}

impl Hears {
    fn says(&self, said: Said) {
        lock(&self.said).push(said);
    }

    fn all(&self) -> Vec<Said> {
        lock(&self.said).clone()
    }
}

impl Overseer for Hears {
    fn late(&self, _: &Core, _: u64, _: &'static str, _: Awaited) -> bool {
        self.says(Said::Late);
        self.cuts
    }

    fn lost(&self, _: &Core, _: &'static str, _: Awaited) {
        self.says(Said::Lost);
    }

    fn back(&self, _: &Core, _: u64, broken: bool) {
        self.says(Said::Back { broken });
    }

    fn thread_abandoned(&self, abandoned: bool) {
        self.says(Said::Abandoned(abandoned));
    }
}

struct Rig {
    lane: Arc<Generation>,
    hears: Arc<Hears>,
    answers: watch::Sender<bool>,
    daemon: tokio::task::JoinHandle<()>,
}

fn whose() -> Whose {
    Whose { provider: "home".to_owned(), host: "kvm-1".to_owned() }
}

fn hears(cuts: bool) -> Arc<Hears> {
    Arc::new(Hears { said: Mutex::default(), cuts })
}

/// `cuts`: what the link wants done about a late call.
async fn rig(kind: LaneKind, answers: bool, cuts: bool) -> Rig {
    let (ours, theirs) = duplex(1 << 16);
    let (answers, hear) = watch::channel(answers);
    let daemon = tokio::spawn(daemon(theirs, hear));
    let bridge = Bridge::start(&Arc::new(SocketDir::new().unwrap()), ours).unwrap();
    let hears = hears(cuts);
    let lane = Generation::open(kind, 1, whose(), bridge, Some(AMPLE), hears.clone()).await.unwrap();
    Rig { lane, hears, answers, daemon }
}

type Answer = oneshot::Receiver<Result<Result<u32, RpcError>, Unanswered>>;

impl Rig {
    /// A call that the daemon has to answer.
    fn asks(&self, within: Duration) -> Answer {
        self.lane.submit("virConnectGetLibVersion", Awaited::Daemon, Instant::now() + within, |libvirt| {
            libvirt.rpc("virConnectGetLibVersion", "", virt::connect::Connect::lib_version)
        })
    }

    async fn says(&self, wanted: &[Said]) {
        eventually(|| self.hears.all() == wanted, || format!("{wanted:?}, not {:?}", self.hears.all())).await;
    }
}

async fn eventually(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < AMPLE, "{}", what());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Of this kind of lane; the kernel keeps 15 bytes of a name.
fn threads(kind: LaneKind) -> usize {
    let name = format!("virt-{}", kind.as_str());
    let all = fs::read_dir("/proc/self/task").unwrap().flatten();
    all.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .filter(|comm| comm.starts_with(&name))
        .count()
}

async fn frees(kind: LaneKind) {
    eventually(|| threads(kind) == 0, || format!("{} threads of {kind:?}", threads(kind))).await;
}

/// Fault 15.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_that_nobody_answers_ends_with_its_limit_and_frees_its_thread() {
    let (ours, _theirs) = duplex(1 << 16);
    let bridge = Bridge::start(&Arc::new(SocketDir::new().unwrap()), ours).unwrap();
    let (begun, hears) = (Instant::now(), hears(true));
    let opened = Generation::open(LaneKind::Check, 1, whose(), bridge, Some(SOON), hears.clone()).await;
    assert_eq!(opened.err(), Some(Unanswered::Late));
    assert!(begun.elapsed() < SOON + RETURNS_WITHIN, "{:?}", begun.elapsed());
    frees(LaneKind::Check).await;
    assert_eq!(hears.all(), [], "no thread was given up");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_call_is_told_in_time_and_the_cut_frees_all_threads_of_its_lane_and_of_no_other() {
    let rig = rig(LaneKind::Agent, false, true).await;
    let (other, begun) = (self::rig(LaneKind::Control, true, true).await, Instant::now());
    // Two are begun, the rest waits behind them.
    let calls: Vec<_> = [SOON, AMPLE, AMPLE].map(|within| rig.asks(within)).into();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap().unwrap_err());
    }
    assert!(begun.elapsed() < SOON + RETURNS_WITHIN, "{:?}", begun.elapsed());
    assert_eq!(answers, [Unanswered::Late, Unanswered::Broken(None), Unanswered::Broken(None)]);
    assert!(rig.lane.has_ended());
    // The one that was late, the one that was cut with it; both come back from the shut socket.
    rig.says(&[Said::Late, Said::Lost, Said::Back { broken: true }, Said::Back { broken: true }]).await;
    frees(LaneKind::Agent).await;
    assert_eq!(rig.asks(SOON).await.unwrap(), Err(Unanswered::Broken(None)), "nothing more is begun");

    assert_eq!(other.asks(AMPLE).await.unwrap(), Ok(Ok(9_000_000)));
    // A call that panics is one that broke, and its lane goes on.
    let panics = other
        .lane
        .submit("x", Awaited::Daemon, Instant::now() + AMPLE, |_| -> Result<u32, RpcError> { panic!("as it should") });
    assert!(panics.await.is_err());
    assert_eq!(other.asks(AMPLE).await.unwrap(), Ok(Ok(9_000_000)));
    // Nobody waits any more; the threads end with the value.
    drop(other.asks(AMPLE));
    drop(other.lane);
    frees(LaneKind::Control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_call_that_is_left_stays_and_comes_back_and_its_lane_goes_on() {
    let rig = rig(LaneKind::Storage, false, false).await;
    let (late, behind) = (rig.asks(SOON), rig.asks(AMPLE));
    assert_eq!(late.await.unwrap(), Err(Unanswered::Late));
    assert_eq!(behind.await.unwrap(), Err(Unanswered::NotBegun), "nothing can begin behind it");
    assert!(!rig.lane.has_ended() && threads(LaneKind::Storage) == 1);
    rig.answers.send_replace(true);
    rig.says(&[Said::Late, Said::Back { broken: false }]).await;
    assert_eq!(rig.asks(AMPLE).await.unwrap(), Ok(Ok(9_000_000)));
    // The host goes: what is asked then is broken, and the threads end.
    rig.daemon.abort();
    let answer = rig.asks(AMPLE).await.unwrap();
    assert!(matches!(answer, Err(Unanswered::Broken(_))), "{answer:?}");
    frees(LaneKind::Storage).await;
    assert!(rig.lane.has_ended());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_bounded_ends_with_its_deadline_and_is_counted_if_it_is_given_up_in_the_middle() {
    let rig = rig(LaneKind::Bulk, false, true).await;
    let begun = rig.asks(AMPLE);
    eventually(|| lock(&rig.lane.calls).values().any(|call| call.stage == Stage::Begun), || "one begins".to_owned())
        .await;
    let waiting: Vec<_> = (0..QUEUE).map(|_| rig.asks(SOON)).collect();
    assert_eq!(rig.asks(AMPLE).await.unwrap(), Err(Unanswered::Full));
    for call in waiting {
        assert_eq!(call.await.unwrap(), Err(Unanswered::NotBegun));
    }
    assert!(!rig.lane.has_ended() && rig.hears.all().is_empty(), "what was not begun is no trouble of the host's");
    rig.lane.abandon();
    assert_eq!(begun.await.unwrap(), Err(Unanswered::Broken(None)));
    rig.says(&[Said::Lost, Said::Back { broken: true }]).await;
    frees(LaneKind::Bulk).await;
}
