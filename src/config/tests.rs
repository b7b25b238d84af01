use secrecy::ExposeSecret;
use tempfile::TempDir;

use super::*;

const PROVIDERS: &str = "providers:\n- {name: local, type: process, ports: 31280-31379}\n";

/// A directory with `p.yaml` (good), `m/` (manifests), `s/` (state), `cert` and `key`; `@` in a flag stands for it.
struct Given {
    dir: TempDir,
}

impl Given {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for sub in ["m", "s"] {
            std::fs::create_dir(dir.path().join(sub)).expect("made");
        }
        for (name, text) in [("p.yaml", PROVIDERS), ("bad.yaml", "providers: 1\n"), ("cert", ""), ("key", "")] {
            std::fs::write(dir.path().join(name), text).expect("written");
        }
        Self { dir }
    }

    fn with_tokens(&self, flags: &[&str], tokens: Tokens) -> Result<Config, String> {
        let here = self.dir.path().to_str().expect("a plain path");
        let line = std::iter::once("operator".to_owned()).chain(flags.iter().map(|f| f.replace('@', here)));
        let args = Args::try_read(line).map_err(|error| error.to_string())?;
        Config::from_args(args, tokens).map_err(|error| error.to_string().replace(here, "@"))
    }

    fn read(&self, flags: &[&str]) -> Result<Config, String> {
        self.with_tokens(flags, Tokens::default())
    }

    /// The flags behind those of a standalone operator that starts.
    fn standalone(&self, flags: &[&str]) -> Result<Config, String> {
        self.read(&[STANDALONE, flags].concat())
    }
}

const STANDALONE: &[&str] = &["--standalone", "@/m", "--state-dir", "@/s", "--providers-config", "@/p.yaml"];

#[test]
fn flags_that_do_not_go_together_are_refused_with_the_way_out() {
    let given = Given::new();
    let only = "pass an existing directory of manifests";
    let rows: Vec<(&[&str], String)> = vec![
        (&["--allow-mass-removal"], "--allow-mass-removal: has no meaning without --standalone; leave it out, or add --standalone".into()),
        (&["--on-exit", "delete"], "--on-exit: has no meaning without --standalone; leave it out, or add --standalone".into()),
        (&["--standalone", "@/m"], "--state-dir: is needed with --standalone; pass a directory that outlives the operator, such as /var/lib/egress".into()),
        (&["--standalone", "@/none", "--state-dir", "@/s"], format!("--standalone @/none: cannot be listed (No such file or directory (os error 2)); {only}")),
        (&["--standalone", "@/p.yaml", "--state-dir", "@/s"], format!("--standalone @/p.yaml: cannot be listed (Not a directory (os error 20)); {only}")),
        (&["--standalone", "@/m", "--state-dir", "@/p.yaml"], "--state-dir @/p.yaml: is not a directory; pass a directory, new or our own".into()),
        (&["--standalone", "@/m", "--state-dir", "@/m"], "--state-dir @/m: is the directory of the manifests, which is only ever read; pass another directory".into()),
        (&["--standalone", "@/m", "--state-dir", "@/s"], "--providers-config: is needed; pass the path of a providers config (config/samples/ has some)".into()),
        (&["--standalone", "@/m", "--state-dir", "@/s", "--providers-config", "@/none"], "providers config @/none: cannot be read (No such file or directory (os error 2)); correct --providers-config, or make the file: `providers: []` will do where all Proxies are external, and config/samples has examples of entries".into()),
        (&["--standalone", "@/m", "--state-dir", "@/s", "--providers-config", "@/bad.yaml"], "providers config @/bad.yaml:1:12: providers: expected a list (`[..]`, or lines that start with `- `)".into()),
    ];
    for (flags, expected) in rows {
        assert_eq!(given.read(flags).map(drop), Err(expected), "{flags:?}");
    }
}

#[test]
fn each_bad_value_beside_good_ones_is_refused_with_the_way_out() {
    let given = Given::new();
    let url = "write it like https://www.gstatic.com/generate_204";
    let rows: Vec<(&[&str], String)> = vec![
        (&["--leader-elect"], "--leader-elect: has no meaning with --standalone; leave it out: one operator at a time can use a state directory".into()),
        (&["--serve-without-claim"], "--serve-without-claim: has no meaning with --standalone; leave it out: one operator at a time can use a state directory".into()),
        (&["--tokens-file", "@/key"], "--tokens-file @/key: is not read by this version yet; leave it out and set DISCOVERY_TOKEN".into()),
        (&["--tls-cert", "@/cert"], "--tls-cert @/cert: comes without --tls-key; pass both, or neither for plain HTTP".into()),
        (&["--tls-key", "@/key"], "--tls-key @/key: comes without --tls-cert; pass both, or neither for plain HTTP".into()),
        (&["--tls-cert", "@/cert", "--tls-key", "@/none"], "--tls-key @/none: cannot be read (No such file or directory (os error 2)); pass a readable PEM file".into()),
        (&["--list-interval", "0s"], "--list-interval 0s: must be more than nothing; give an interval such as 15s".into()),
        (&["--gc-interval", "0s"], "--gc-interval 0s: must be more than nothing; give an interval such as 15s".into()),
        (&["--provider-check-interval", "0s"], "--provider-check-interval 0s: must be more than nothing; give an interval such as 15s".into()),
        (&["--provider-check-timeout", "0s"], "--provider-check-timeout 0s: must be more than nothing; give a time such as 15s, or leave it out".into()),
        (&["--provider-check-timeout", "2m"], "--provider-check-timeout 2m: is longer than --provider-check-interval 1m; give at most the interval".into()),
        (&["--max-lease-ttl", "0s"], "--max-lease-ttl 0s: is less than 1s; give a time such as 1h".into()),
        (&["--max-lease-ttl", "999ms"], "--max-lease-ttl 999ms: is less than 1s; give a time such as 1h".into()),
        (&["--admin-addr", ":8090"], "--admin-addr 0.0.0.0:8090: is taken by --discovery-addr (127.0.0.1:8090); give each server a port of its own".into()),
        (&["--echo-addr", "127.0.0.1:8080"], "--echo-addr 127.0.0.1:8080: is taken by --admin-addr (0.0.0.0:8080); give each server a port of its own".into()),
        (&["--probe-target", "gstatic"], format!("--probe-target gstatic: is not a URL (relative URL without a base); {url}")),
        (&["--probe-target", "http://"], format!("--probe-target http://: is not a URL (empty host); {url}")),
        (&["--probe-target", "ftp://a/"], "--probe-target ftp://a/: has the scheme ftp; use http or https".into()),
        (&["--probe-target", "https://a/#b"], "--probe-target https://a/#b: has a fragment, which is never sent; leave the part from # on out".into()),
    ];
    for (flags, expected) in rows {
        assert_eq!(given.standalone(flags).map(drop), Err(expected), "{flags:?}");
    }
}

#[test]
fn a_password_in_the_probe_target_is_refused_without_being_shown() {
    let given = Given::new();
    // No `@` from the directory's place holder here: the flags go in as they are.
    let refused = |target: &str| {
        let here = given.dir.path().to_str().expect("a plain path");
        let line =
            STANDALONE.iter().map(|f| f.replace('@', here)).chain(["--probe-target".to_owned(), target.to_owned()]);
        let args = Args::try_read(std::iter::once("operator".to_owned()).chain(line)).expect("parsed one by one");
        assert!(!format!("{args:?}").contains("s3cret"), "{args:?}");
        Config::from_args(args, Tokens::default()).expect_err("refused").to_string()
    };
    assert_eq!(
        refused("https://u:s3cret@a/"),
        "--probe-target: holds a user name or password; leave the part before @ out"
    );
    assert_eq!(
        refused("https://u:s3cret@a:99999/"),
        "--probe-target: is not a URL (invalid port number); write it like https://www.gstatic.com/generate_204"
    );
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let given = Given::new();
    let config = given.standalone(&[]).expect("valid");
    let seconds = Duration::from_secs;
    assert_eq!(
        config.mode,
        Mode::Standalone(Standalone {
            manifests: given.dir.path().join("m"),
            state_dir: given.dir.path().join("s"),
            allow_mass_removal: false,
            on_exit: OnExit::Keep,
        })
    );
    assert_eq!(
        config.health,
        Health {
            workers: 64,
            target: Arc::new("https://www.gstatic.com/generate_204".parse().expect("a URL")),
            list_every: seconds(15),
            check_every: seconds(60),
            check_timeout: seconds(15),
        }
    );
    assert_eq!(
        config.leases,
        Leases { cooldown: seconds(300), max_ttl: seconds(3600), drain_timeout: seconds(0), journal: None }
    );
    let gc =
        Gc { every: seconds(600), min_age: seconds(900), max_deletes: 10, dry_run: false, allow_namespaced: false };
    assert_eq!(config.gc, gc);
    assert_eq!(config.admin.addr.to_string(), "0.0.0.0:8080");
    assert_eq!((config.echo_addr, config.tls, config.operator_id, config.proxy_namespace), (None, None, None, None));
    assert_eq!(config.providers.entries.len(), 1);
}

#[test]
fn the_check_timeout_follows_a_shorter_interval() {
    let given = Given::new();
    let timeout = |flags: &[&str]| given.standalone(flags).expect("valid").health.check_timeout;
    assert_eq!(timeout(&["--provider-check-interval", "10s"]), Duration::from_secs(10));
    assert_eq!(
        timeout(&["--provider-check-interval", "10s", "--provider-check-timeout", "3s"]),
        Duration::from_secs(3)
    );
    assert_eq!(timeout(&["--provider-check-timeout", "1m"]), Duration::from_mins(1));
}

#[test]
fn without_a_token_the_lease_api_is_on_loopback_and_says_so() {
    let given = Given::new();
    let open = given.standalone(&[]).expect("valid");
    assert_eq!((open.lease_api.addr.to_string().as_str(), open.lease_api.narrowed), ("127.0.0.1:8090", true));
    assert_eq!(
        open.warnings,
        ["without DISCOVERY_TOKEN the lease API listens on 127.0.0.1:8090 only, not on 0.0.0.0:8090"]
    );
    let local = given.standalone(&["--discovery-addr", "localhost:8090"]).expect("valid");
    assert_eq!((local.lease_api.narrowed, local.warnings.len()), (false, 0));

    let tokens = Tokens { discovery: Some("s3cret".to_owned().into()), admin: None };
    let closed = given.with_tokens(STANDALONE, tokens).expect("valid");
    assert_eq!((closed.lease_api.addr.to_string().as_str(), closed.lease_api.narrowed), ("0.0.0.0:8090", false));
    assert_eq!(closed.warnings, Vec::<String>::new());
}

#[test]
fn no_secret_shows_in_debug() {
    let given = Given::new();
    let token = |text: &str| Some(text.to_owned().into());
    let tokens = Tokens { discovery: token("s3cret-lease"), admin: token("s3cret-admin") };
    assert!(!format!("{tokens:?}").contains("s3cret"));
    let config = given.with_tokens(STANDALONE, tokens).expect("valid");
    let shown = format!("{config:?} {config:#?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    // The values are there, so that the assertion above means something.
    assert_eq!(config.lease_api.token.expect("kept").expose_secret(), "s3cret-lease");
    assert_eq!(config.admin.token.expect("kept").expose_secret(), "s3cret-admin");
}

#[test]
fn servers_may_share_a_port_number_where_they_do_not_meet() {
    let given = Given::new();
    let apart = ["--discovery-addr", "127.0.0.1:9000", "--admin-addr", "127.0.0.2:9000", "--echo-addr", "[::1]:9000"];
    assert!(given.standalone(&apart).is_ok());
    let any_free = ["--discovery-addr", "localhost:0", "--admin-addr", "localhost:0"];
    assert!(given.standalone(&any_free).is_ok());
}

#[test]
fn without_standalone_it_is_a_cluster() {
    let args = Args::try_read(["operator", "--leader-elect=false", "--serve-without-claim"]).expect("parsed");
    let cluster = Cluster { state_dir: None, leader_elect: Some(false), serve_without_claim: true };
    assert_eq!(mode(&args), Ok(Mode::Cluster(cluster)));
}
