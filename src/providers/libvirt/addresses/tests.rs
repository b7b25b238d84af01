use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;

const OURS: &str = "52:54:00:00:00:01";
const OTHER: &str = "52:54:00:00:00:02";

fn mac(text: &str) -> Mac {
    text.parse().expect("a MAC address")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn nic(mac_text: &str, name: &str, addresses: &[&str]) -> Nic {
    Nic {
        mac: (!mac_text.is_empty()).then(|| mac(mac_text)),
        name: name.to_owned(),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
    }
}

fn lease(mac_text: &str, address: &str, expires: u64) -> Lease {
    Lease { mac: mac(mac_text), address: ip(address), expires_at: at(expires) }
}

fn failed<T>(code: i32) -> Result<Vec<T>, SourceError> {
    Err(SourceError { code: Some(code), detail: format!("code {code}") })
}

/// At second 1000. `"error"`, `"none"`, or the address.
fn outcome(agent: Result<Vec<Nic>, SourceError>, leases: Result<Vec<Lease>, SourceError>) -> String {
    match choose(mac(OURS), agent, leases, at(1000)) {
        Ok(Some(address)) => address.to_string(),
        Ok(None) => "none".to_owned(),
        Err(_) => "error".to_owned(),
    }
}

#[test]
fn the_card_is_found_by_its_mac_and_never_by_its_name() {
    for (nics, expected) in [
        (vec![nic(OURS, "ens3", &["192.0.2.1"])], "192.0.2.1"),
        (vec![nic(OTHER, "eth0", &["192.0.2.2"]), nic(OURS, "eth1", &["192.0.2.1"])], "192.0.2.1"),
        (vec![nic(OTHER, "eth0", &["192.0.2.2"])], "none"),
        (vec![nic("", "lo", &["127.0.0.1", "::1"])], "none"),
        (vec![nic(OURS, "eth0", &[]), nic(OURS, "br0", &["192.0.2.1"])], "192.0.2.1"),
        (vec![], "none"),
    ] {
        assert_eq!(outcome(Ok(nics.clone()), failed(55)), expected, "{nics:?}");
    }
}

#[test]
fn addresses_that_no_client_can_dial_are_skipped() {
    for never in [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "0.1.2.3",
        "169.254.1.1",
        "224.0.0.1",
        "239.1.1.1",
        "255.255.255.255",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1",
        "febf::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.1.1",
        "64:ff9b::1",
    ] {
        assert_eq!(
            outcome(Ok(vec![nic(OURS, "eth0", &[never])]), Ok(vec![lease(OURS, never, 2000)])),
            "none",
            "{never}"
        );
        let nics = vec![nic(OURS, "eth0", &[never, "192.0.2.1"])];
        assert_eq!(outcome(Ok(nics), Ok(vec![])), "192.0.2.1", "{never}");
    }
}

#[test]
fn what_a_guest_made_for_its_own_containers_is_skipped() {
    for name in ["lo", "docker0", "docker_gwbridge", "virbr0", "cni0", "cni-podman0", "veth1a2b", "br-0a1b2c"] {
        assert_eq!(outcome(Ok(vec![nic(OURS, name, &["172.17.0.1"])]), Ok(vec![])), "none", "{name}");
    }
}

#[test]
fn ipv4_comes_before_global_ipv6_and_that_before_local_ipv6() {
    for (addresses, expected) in [
        (&["2001:db8::1", "192.0.2.1"][..], "192.0.2.1"),
        (&["fe80::1", "fd00::1", "2001:db8::1"], "2001:db8::1"),
        (&["fe80::1", "fd00::1"], "fd00::1"),
        (&["10.0.0.2", "10.0.0.1"], "10.0.0.2"),
        (&["::ffff:192.0.2.7"], "192.0.2.7"),
    ] {
        assert_eq!(outcome(Ok(vec![nic(OURS, "eth0", addresses)]), Ok(vec![])), expected, "{addresses:?}");
    }
}

#[test]
fn the_newest_lease_that_has_not_ended_wins() {
    for (leases, expected) in [
        (
            vec![lease(OURS, "192.0.2.1", 1500), lease(OURS, "192.0.2.2", 3000), lease(OURS, "192.0.2.3", 2000)],
            "192.0.2.2",
        ),
        (vec![lease(OURS, "192.0.2.1", 999), lease(OURS, "192.0.2.2", 1000)], "none"),
        (vec![lease(OTHER, "192.0.2.1", 5000)], "none"),
        (vec![lease(OURS, "2001:db8::1", 5000), lease(OURS, "192.0.2.1", 2000)], "192.0.2.1"),
        (vec![lease(OURS, "192.0.2.9", 2000), lease(OURS, "192.0.2.8", 2000)], "192.0.2.8"),
        (vec![lease(OURS, "192.0.2.8", 2000), lease(OURS, "192.0.2.9", 2000)], "192.0.2.8"),
    ] {
        assert_eq!(outcome(failed(86), Ok(leases.clone())), expected, "{leases:?}");
    }
}

#[test]
fn the_agent_is_believed_before_a_lease() {
    let leases = || Ok(vec![lease(OURS, "192.0.2.2", 5000)]);
    assert_eq!(outcome(Ok(vec![nic(OURS, "eth0", &["192.0.2.1"])]), leases()), "192.0.2.1");
    assert_eq!(outcome(Ok(vec![nic(OURS, "eth0", &["fe80::1"])]), leases()), "192.0.2.2");
    assert_eq!(outcome(Ok(vec![nic(OURS, "eth0", &["2001:db8::1"])]), leases()), "2001:db8::1");
}

#[test]
fn one_source_that_answers_is_enough() {
    for code in [1, 38, 55, 74, 86] {
        assert_eq!(outcome(failed(code), Ok(vec![lease(OURS, "192.0.2.2", 5000)])), "192.0.2.2", "{code}");
        assert_eq!(outcome(Ok(vec![nic(OURS, "eth0", &["192.0.2.1"])]), failed(code)), "192.0.2.1", "{code}");
        assert_eq!(outcome(failed(code), Ok(vec![])), "none", "{code}");
        assert_eq!(outcome(Ok(vec![]), failed(code)), "none", "{code}");
    }
}

#[test]
fn no_source_that_can_be_read_is_an_error_and_not_no_address() {
    for (agent, leases, expected) in [
        (38, 38, "error"),
        (1, 55, "error"),
        // The guest may have an address for long: an image without an agent always answers 86.
        (86, 38, "error"),
        (74, 1, "error"),
        (86, 55, "none"),
        (74, 55, "none"),
        (55, 55, "none"),
    ] {
        assert_eq!(outcome(failed(agent), failed(leases)), expected, "agent {agent}, leases {leases}");
    }
    let cut = || SourceError { code: None, detail: "no answer in 2 s".to_owned() };
    assert_eq!(outcome(Err(cut()), Err(cut())), "error", "a call that was cut");
}

#[test]
fn an_error_tells_what_both_sources_said() {
    let error = choose(mac(OURS), failed(1), failed(38), at(1000)).expect_err("an error").to_string();
    assert_eq!(error, "no source of the address can be read: leases: code 38; guest agent: code 1");
}

#[test]
fn a_mac_reads_back_in_lower_case_and_anything_else_is_refused() {
    assert_eq!(mac("52:54:00:AB:CD:ef").to_string(), "52:54:00:ab:cd:ef");
    for bad in [
        "",
        "52:54:00:00:00",
        "52:54:00:00:00:01:02",
        "52-54-00-00-00-01",
        "5:54:00:00:00:001",
        "52:54:00:00:00:+1",
        "\u{e9}:54:00:00:00:01",
    ] {
        assert!(bad.parse::<Mac>().is_err(), "{bad}");
    }
}

fn any_mac() -> impl Strategy<Value = Mac> {
    prop_oneof![Just(mac(OURS)), any::<[u8; 6]>().prop_map(Mac)]
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        any::<[u8; 3]>().prop_map(|[a, b, c]| IpAddr::from([127, a, b, c])),
        any::<[u8; 2]>().prop_map(|[a, b]| IpAddr::from([169, 254, a, b])),
        any::<[u8; 4]>().prop_map(|v4| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().into()),
        any::<u64>().prop_map(|low| std::net::Ipv6Addr::from((0xfe80_u128 << 112) | u128::from(low)).into()),
    ]
}

fn any_error() -> impl Strategy<Value = SourceError> {
    proptest::option::of(0..100_i32).prop_map(|code| SourceError { code, detail: String::new() })
}

fn any_agent() -> impl Strategy<Value = Result<Vec<Nic>, SourceError>> {
    let nic = (proptest::option::of(any_mac()), "[a-z0-9-]{0,6}", proptest::collection::vec(any_address(), 0..5))
        .prop_map(|(mac, name, addresses)| Nic { mac, name, addresses });
    prop_oneof![proptest::collection::vec(nic, 0..5).prop_map(Ok), any_error().prop_map(Err)]
}

fn any_leases() -> impl Strategy<Value = Result<Vec<Lease>, SourceError>> {
    let lease = (any_mac(), any_address(), 0..2000_u64).prop_map(|(mac, address, expires)| Lease {
        mac,
        address,
        expires_at: at(expires),
    });
    prop_oneof![proptest::collection::vec(lease, 0..5).prop_map(Ok), any_error().prop_map(Err)]
}

proptest! {
    #[test]
    fn whatever_is_told_the_choice_is_one_that_was_told_and_that_can_be_dialled(agent in any_agent(), leases in any_leases()) {
        let told: Vec<_> = agent.iter().flatten().flat_map(|nic| nic.addresses.clone())
            .chain(leases.iter().flatten().map(|lease| lease.address))
            .map(|address| address.to_canonical())
            .collect();
        let both_failed = agent.is_err() && leases.is_err();
        match choose(mac(OURS), agent, leases, at(1000)) {
            Ok(Some(address)) => {
                prop_assert!(told.contains(&address));
                prop_assert!(!address.is_loopback() && !address.is_unspecified() && !address.is_multicast());
                let reachable = match address {
                    IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast(),
                    IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
                };
                prop_assert!(reachable, "{address}");
            }
            Ok(None) => {}
            Err(_) => prop_assert!(both_failed),
        }
    }
}
