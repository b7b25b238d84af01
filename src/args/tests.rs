use std::os::unix::ffi::OsStringExt;

use super::*;

fn read(flags: &[&str]) -> Result<Args, String> {
    let line = std::iter::once("egress-proxies-operator").chain(flags.iter().copied());
    Args::try_read(line).map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// The flags of contract.md 4, with their defaults.
const CONTRACT: &[(&str, Option<&str>)] = &[
    ("providers-config", None),
    ("standalone", None),
    ("state-dir", None),
    ("proxy-namespace", None),
    ("discovery-addr", Some(":8090")),
    ("admin-addr", Some(":8080")),
    ("tls-cert", None),
    ("tls-key", None),
    ("health-workers", Some("64")),
    ("list-interval", Some("15s")),
    ("probe-target", Some("https://www.gstatic.com/generate_204")),
    ("echo-addr", None),
    ("gc-interval", Some("10m")),
    ("gc-min-age", Some("15m")),
    ("gc-max-deletes", Some("10")),
    ("gc-dry-run", None),
    ("gc-allow-namespaced", None),
    ("operator-id", None),
    ("lease-cooldown", Some("5m")),
    ("max-lease-ttl", Some("1h")),
    ("drain-timeout", Some("0s")),
    ("tokens-file", None),
    ("lease-journal", None),
    ("provider-check-interval", Some("1m")),
    ("provider-check-timeout", None),
    ("leader-elect", None),
    ("serve-without-claim", None),
    ("allow-mass-removal", None),
    ("on-exit", None),
    ("log-format", None),
    ("log-level", Some("info")),
];

#[test]
fn the_flags_and_their_defaults_are_those_of_the_contract() {
    let command = Args::command_line();
    let mut expected: Vec<_> = CONTRACT.to_vec();
    expected.sort_unstable();
    let mut found: Vec<(&str, Option<&str>)> = command
        .get_arguments()
        .filter_map(|arg| {
            let default = arg.get_default_values().first().and_then(|v| v.to_str());
            Some((arg.get_long()?, default.filter(|_| arg.get_action().takes_values())))
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn every_flag_has_its_variable_and_a_heading() {
    for arg in Args::command_line().get_arguments() {
        let Some(long) = arg.get_long() else { panic!("{} is positional", arg.get_id()) };
        let variable = format!("EGRESS_{}", long.to_uppercase().replace('-', "_"));
        assert_eq!(arg.get_env().and_then(|v| v.to_str()), Some(variable.as_str()), "--{long}");
        assert!(arg.get_help_heading().is_some(), "--{long} has no heading");
        assert!(arg.is_hide_env_values_set(), "--{long} would show what the environment holds");
    }
}

#[test]
fn the_tokens_are_no_flags() {
    for flag in ["--discovery-token", "--admin-token"] {
        assert_eq!(read(&[&format!("{flag}=tops3cret")]), Err(format!("error: unexpected argument '{flag}' found")));
    }
}

impl PartialEq for Args {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

#[test]
fn the_command_line_is_sound_and_help_teaches() {
    Args::command_line().debug_assert();
    let help = Args::command_line().render_long_help().to_string();
    for part in [
        "What to run:",
        "Servers:",
        "Health:",
        "Leases:",
        "Orphans:",
        "Logs:",
        "Examples:",
        "[env: EGRESS_STATE_DIR]",
        "[default: 15s]",
        "DISCOVERY_TOKEN",
        "KUBECONFIG",
        "HTTPS_PROXY",
    ] {
        assert!(help.contains(part), "no `{part}` in\n{help}");
    }
    assert!(Args::command_line().render_version().starts_with("egress-proxies-operator 0."));
}

#[test]
fn each_bad_value_is_refused_with_the_flag_and_the_way_out() {
    const DURATION: &str = "not a duration; write it like 15s, 10m, 1h30m or 500ms";
    const ADDR: &str = "write it as :PORT, ADDRESS:PORT or [IPV6]:PORT";
    const LEVEL: &str = "write error, warn, info, debug, trace or off, or a filter such as info,egress_operator=debug";
    let rows: Vec<(&str, &str, String)> = vec![
        ("--list-interval", "15", format!("'15' for '--list-interval <DURATION>': {DURATION}")),
        ("--list-interval", "soon", format!("'soon' for '--list-interval <DURATION>': {DURATION}")),
        ("--gc-interval=-5m", "", "'-5m' for '--gc-interval <DURATION>': a duration cannot be negative".into()),
        ("--max-lease-ttl", "9000h", "'9000h' for '--max-lease-ttl <DURATION>': longer than a year".into()),
        ("--health-workers", "0", "'0' for '--health-workers <N>': 0 is not in 1..=10000".into()),
        ("--health-workers", "10001", "'10001' for '--health-workers <N>': 10001 is not in 1..=10000".into()),
        ("--health-workers", "many", "'many' for '--health-workers <N>': invalid digit found in string".into()),
        ("--gc-max-deletes=-1", "", "'-1' for '--gc-max-deletes <N>': -1 is not in 0..=4294967295".into()),
        ("--discovery-addr", "8090", format!("'8090' for '--discovery-addr <[HOST]:PORT>': no port; {ADDR}")),
        ("--discovery-addr", "myhost:80", format!("'myhost:80' for '--discovery-addr <[HOST]:PORT>': `myhost` is not an IP address (names are not looked up); {ADDR}")),
        ("--admin-addr", ":99999", format!("':99999' for '--admin-addr <[HOST]:PORT>': the port is not a number from 0 to 65535; {ADDR}")),
        ("--admin-addr", ":+80", format!("':+80' for '--admin-addr <[HOST]:PORT>': the port is not a number from 0 to 65535; {ADDR}")),
        ("--echo-addr", "::1:80x", format!("'::1:80x' for '--echo-addr <[HOST]:PORT>': the port is not a number from 0 to 65535; {ADDR}")),
        ("--proxy-namespace", "Crawl", "'Crawl' for '--proxy-namespace <NS>': must be lower-case letters, digits and `-`, start and end with a letter or digit, at most 63 bytes".into()),
        ("--operator-id", "a b", "'a b' for '--operator-id <ID>': operator id `a b` must be 1 to 253 printable characters without spaces and quotes".into()),
        ("--log-level", "verbose", format!("'verbose' for '--log-level <FILTER>': `verbose` is not a level; {LEVEL}")),
        ("--log-level", "info,a=loud", format!("'info,a=loud' for '--log-level <FILTER>': not a filter; {LEVEL}")),
        ("--log-level", "egres_operator=debug", "'egres_operator=debug' for '--log-level <FILTER>': nothing of this operator would be logged: begin with a level, as in info,egres_operator=debug, or name egress_operator or egress_actors".into()),
        ("--log-level", " ", format!("' ' for '--log-level <FILTER>': empty; {LEVEL}")),
        ("--log-format", "xml", "'xml' for '--log-format <json|text>'".into()),
        ("--on-exit", "maybe", "'maybe' for '--on-exit <keep|delete>'".into()),
        ("--leader-elect=perhaps", "", "'perhaps' for '--leader-elect[=<true|false>]': value was not a boolean".into()),
    ];
    for (flag, value, expected) in rows {
        let line: Vec<&str> = [flag, value].into_iter().filter(|part| !part.is_empty()).collect();
        assert_eq!(read(&line), Err(format!("error: invalid value {expected}")), "{line:?}");
    }
    assert_eq!(read(&["serve"]), Err("error: unexpected argument 'serve' found".into()));
}

#[test]
fn values_are_read_as_people_write_them() {
    let args = read(&[
        "--list-interval",
        "1m30s",
        "--leader-elect",
        "--lease-journal",
        "none",
        "--log-level",
        "warn,egress_operator=debug",
    ])
    .expect("valid");
    assert_eq!(args.list_interval, Duration::from_secs(90));
    assert_eq!(args.leader_elect, Some(true));
    assert_eq!(args.lease_journal, Some(LeaseJournal::None));
    assert_eq!(args.log_level.as_str(), "warn,egress_operator=debug");
    let args = read(&["--leader-elect=false", "--lease-journal", "j.redb"]).expect("valid");
    assert_eq!(args.leader_elect, Some(false));
    assert_eq!(args.lease_journal, Some(LeaseJournal::File("j.redb".into())));
}

#[test]
fn of_a_flag_given_twice_the_last_one_wins() {
    let args = read(&[
        "--log-level",
        "debug",
        "--leader-elect",
        "--gc-dry-run",
        "--state-dir=a",
        "--log-level=warn",
        "--leader-elect=false",
        "--gc-dry-run",
        "--state-dir",
        "b",
    ]);
    let args = args.expect("valid");
    assert_eq!((args.log_level.as_str(), args.leader_elect, args.gc_dry_run), ("warn", Some(false), true));
    assert_eq!(args.state_dir, Some("b".into()));
    assert_eq!(read(&["--state-dir=a", "--log-level=warn"]).expect("valid").log_level.as_str(), "warn");
    assert!(Args::command_line().render_long_help().to_string().contains("the last one wins"));
    assert_eq!(read(&[]).expect("valid").log_level, LogFilter::default());
}

#[test]
fn a_filter_that_leaves_the_operator_out_is_refused() {
    for (filter, is_taken) in [
        ("info", true),
        ("off", true),
        ("hyper=debug,warn", true),
        ("egress_operator=debug", true),
        ("egress_actors::proxy=debug,hyper=info", true),
        ("egress=info", true),
        ("egress_operator=off", true),
        ("hyper=debug", false),
        ("hyper=debug,rustls=info", false),
        ("egress_operators=debug", false),
        ("egress_operatorx::providers=debug", false),
        ("[span]=debug", false),
        ("egress_operator[span]=debug", false),
        ("egress_operator::probe[span]=debug", false),
    ] {
        let read = filter.parse::<LogFilter>();
        assert_eq!(read.is_ok(), is_taken, "{filter}: {read:?}");
        assert!(is_taken || read.unwrap_err().contains("nothing of this operator"), "{filter}");
    }
}

#[test]
fn listening_on_loopback_keeps_the_port() {
    let rows = [
        (":8090", "0.0.0.0:8090", "127.0.0.1:8090", true),
        ("localhost:0", "127.0.0.1:0", "127.0.0.1:0", false),
        ("127.0.0.2:80", "127.0.0.2:80", "127.0.0.2:80", false),
        ("10.0.0.9:80", "10.0.0.9:80", "127.0.0.1:80", true),
        ("[::1]:80", "[::1]:80", "[::1]:80", false),
        ("[::]:80", "[::]:80", "127.0.0.1:80", true),
        ("[fd00::1]:80", "[fd00::1]:80", "[::1]:80", true),
    ];
    for (text, wished, loopback, narrowed) in rows {
        let addr: ListenAddr = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
        assert_eq!(addr.wished().to_string(), wished, "{text}");
        let (on_loopback, less) = addr.on_loopback();
        assert_eq!((on_loopback.to_string().as_str(), less), (loopback, narrowed), "{text}");
    }
}

#[test]
fn a_token_that_nobody_could_use_is_an_error_and_not_no_token() {
    const OUT: &str = "set it to a token of visible ASCII characters, or unset it";
    let read = |value: Option<OsString>| {
        Tokens::read(|name| if name == "ADMIN_TOKEN" { value.clone() } else { None }).map_err(|error| error.to_string())
    };
    let spaces =
        format!("ADMIN_TOKEN holds white space or characters that are not plain ASCII (a newline at its end?); {OUT}");
    assert_eq!(read(Some("".into())).expect_err("empty"), format!("ADMIN_TOKEN is empty; {OUT}"));
    for bad in ["s3cret\n", "s3 cret", "s3cret\0", "s3crét"] {
        assert_eq!(read(Some(bad.into())).expect_err("unusable"), spaces);
    }
    let not_utf8 = OsString::from_vec(b"s3cret\xff".to_vec());
    assert_eq!(read(Some(not_utf8)).expect_err("not UTF-8"), format!("ADMIN_TOKEN is not UTF-8; {OUT}"));

    let tokens = read(Some("s3cret".into())).expect("valid");
    assert!(tokens.admin.is_some() && tokens.discovery.is_none());
    assert!(!format!("{tokens:?}").contains("s3cret"), "{tokens:?}");
}
