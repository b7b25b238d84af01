use Class::{EffectUnknown, Permanent, Transient};

use super::*;

const ABOUT: About<'_> = About { host: "kvm-1", pool: "fast", network: "br-egress", user: "operator" };

fn answer(code: u32, domain: u32, message: &str) -> LinkError {
    LinkError::Rpc(RpcError { rpc: "virDomainCreate", code, domain, message: message.to_owned() })
}

/// What libvirt 9.0 says, word for word where that was seen.
const ANSWERS: &[(u32, u32, &str, Reason, &[&str])] = &[
    (
        45,
        7,
        "authentication failed: no agent is available to authenticate",
        Reason::LibvirtAuthFailed,
        &["operator", "group libvirt"],
    ),
    (
        79,
        7,
        "authentication cancelled: user cancelled authentication process",
        Reason::LibvirtAuthFailed,
        &["group libvirt"],
    ),
    (88, 0, "access denied: 'connect' denied", Reason::LibvirtAuthFailed, &["group libvirt"]),
    (94, 7, "authentication unavailable: no polkit agent available", Reason::LibvirtAuthFailed, &["group libvirt"]),
    (
        1,
        0,
        "internal error: Unable to get system bus connection: Could not connect: No such file or directory",
        Reason::LibvirtAuthFailed,
        &["group libvirt"],
    ),
    (
        43,
        19,
        "Network not found: no network with matching name 'br-egress'",
        Reason::NetworkNotFound,
        &["br-egress", "net-start"],
    ),
    (
        55,
        19,
        "Requested operation is not valid: network 'br-egress' is not active",
        Reason::NetworkNotFound,
        &["net-start"],
    ),
    (
        1,
        0,
        "internal error: /usr/lib/qemu/qemu-bridge-helper --use-vnet failed to communicate with bridge helper: failed to create tun device",
        Reason::NetworkNotFound,
        &["br-egress"],
    ),
    (38, 0, "Cannot get interface MTU on 'br-egress': No such device", Reason::NetworkNotFound, &["br-egress"]),
    (
        49,
        18,
        "Storage pool not found: no storage pool with matching name 'fast'",
        Reason::PoolNotFound,
        &["fast", "pool-start"],
    ),
    (
        55,
        18,
        "Requested operation is not valid: storage pool 'fast' is not active",
        Reason::PoolInactive,
        &["fast", "pool-start"],
    ),
    (38, 38, "Unable to write /pool/base-a.raw: No space left on device", Reason::StorageFull, &["fast"]),
    (
        38,
        18,
        "cannot allocate 1048576 bytes in file '/pool/a': No space left on device",
        Reason::StorageFull,
        &["fast"],
    ),
    (
        67,
        10,
        "unsupported configuration: Emulator '/usr/bin/qemu-system-x86_64' does not support virt type 'kvm'",
        Reason::KVMUnavailable,
        &["virtType: qemu"],
    ),
    (
        9,
        10,
        "process exited while connecting to monitor: Could not access KVM kernel module: No such file or directory",
        Reason::KVMUnavailable,
        &["virtType: qemu"],
    ),
    (
        1,
        10,
        "internal error: qemu: failed to initialize kvm: Permission denied",
        Reason::KVMUnavailable,
        &["virtType: qemu"],
    ),
    (
        9,
        10,
        "operation failed: Unable to find 'efi' firmware that is compatible with the current configuration",
        Reason::FirmwareMissing,
        &["ovmf", "firmware: bios"],
    ),
    (
        9,
        10,
        "internal error: process exited: Could not open '/pool/a.qcow2': Permission denied",
        Reason::DiskPermissionDenied,
        &["fast", "AppArmor"],
    ),
    (
        38,
        18,
        "Cannot access storage file '/pool/a.qcow2' (as uid:64055, gid:64055): No such file or directory",
        Reason::StorageNotFound,
        &["gone"],
    ),
    (1, 7, "Too many active clients (20), dropping connection", Reason::Unreachable, &["max_clients"]),
    (27, 20, "XML error: a missing thing", Reason::APIError, &["libvirt code 27", "a missing thing"]),
    (
        68,
        10,
        "Timed out during operation: cannot acquire state change lock (held by agent=remoteDispatchDomainInterfaceAddresses)",
        Reason::APIError,
        &["state change lock"],
    ),
    (55, 10, "Requested operation is not valid: domain is not running", Reason::APIError, &["is not running"]),
    (42, 10, "Domain not found: no domain with matching name 'x'", Reason::APIError, &["libvirt code 42"]),
];

/// An answer is an end: what it was about did not happen, or it would have said so. And whatever is full, taken, or not
/// there yet passes: nothing here is a reason to give a Proxy up.
#[test]
fn each_answer_of_libvirt_has_its_reason_and_way_out_and_passes_whatever_was_asked() {
    for (code, domain, message, reason, words) in ANSWERS {
        for effect in [Effect::None, Effect::Possible] {
            let error = of(ABOUT, "start the domain", effect, answer(*code, *domain, message));
            assert_eq!((error.class, error.reason), (Transient, *reason), "{message}");
            for word in words.iter().chain(&["kvm-1"]) {
                assert!(error.detail.contains(word), "{word}: {error}");
            }
        }
    }
}

#[test]
fn what_has_no_answer_may_have_happened_only_if_it_was_sent_and_changes_something() {
    let broken = RpcError { rpc: "virDomainCreate", code: 38, domain: 7, message: "End of file".into() };
    let unanswered = |rpc, why| LinkError::Unanswered(rpc, Duration::from_secs(8), why);
    let create = "virDomainCreate";
    for (error, look, change, reason, word) in [
        (
            unanswered(create, Unanswered::Late),
            Transient,
            EffectUnknown,
            Reason::Timeout,
            "virDomainCreate did not come back within 8 s",
        ),
        (unanswered("virConnectOpen", Unanswered::Late), Transient, Transient, Reason::Timeout, "virConnectOpen"),
        (unanswered("virConnectOpen", Unanswered::Broken(None)), Transient, Transient, Reason::Unreachable, "broke"),
        (unanswered(create, Unanswered::NotBegun), Transient, Transient, Reason::Timeout, "before this one"),
        (unanswered(create, Unanswered::Full), Transient, Transient, Reason::Busy, "too many calls"),
        (unanswered(create, Unanswered::Broken(None)), Transient, EffectUnknown, Reason::Unreachable, "broke"),
        (
            unanswered(create, Unanswered::Broken(Some(broken))),
            Transient,
            EffectUnknown,
            Reason::Unreachable,
            "End of file",
        ),
        (LinkError::Wedged, Transient, Transient, Reason::Wedged, "restart libvirtd"),
        (LinkError::PoolStuck, Transient, Transient, Reason::Timeout, "pool `fast`"),
        (LinkError::AgentsStuck, Transient, Transient, Reason::Timeout, "guest agents"),
    ] {
        for (effect, class) in [(Effect::None, look), (Effect::Possible, change)] {
            let told = of(ABOUT, "start the domain", effect, error.clone());
            assert_eq!((told.class, told.reason), (class, reason), "{error:?} {effect:?}");
            assert!(told.detail.contains(word) && told.detail.contains("kvm-1"), "{told}");
        }
    }
}

#[test]
fn what_the_connection_says_is_passed_on_as_it_is_and_what_is_not_ours_is_for_a_person() {
    let given = OpError::permanent(Reason::HostKeyMismatch, "another key");
    for effect in [Effect::None, Effect::Possible] {
        assert_eq!(of(ABOUT, "look", effect, LinkError::NoLink(given.clone())), given);
    }
    let error = conflict("domain `px-a`");
    assert_eq!((error.class, error.reason), (Permanent, Reason::NameConflict));
    assert!(error.detail.contains("domain `px-a`") && error.detail.contains("not touched"));
    assert!(is(&answer(42, 10, ""), code::NO_DOMAIN) && !is(&answer(42, 10, ""), code::NO_NETWORK));
    assert!(!is(&LinkError::Wedged, code::NO_DOMAIN));
}

/// (29) As it was seen: the cause is the last of a line that begins with a whole command.
#[test]
fn a_pool_that_is_full_is_told_as_full_though_qemu_img_says_so_at_the_end_of_a_long_line() {
    let disk = format!("/var/lib/libvirt/{}/px-{}.qcow2", "p".repeat(150), "x".repeat(57));
    let text = format!(
        "internal error: Child process (/usr/bin/qemu-img create -f qcow2 -b {disk} -o backing_fmt=raw,compat=1.1 {disk} 1024K) \
         unexpected exit status 1: qemu-img: {disk}: Could not write qcow2 header: No space left on device"
    );
    let error = LinkError::Rpc(RpcError::unreadable("virStorageVolCreateXML", &text));
    let told = of(ABOUT, "make a volume", Effect::Possible, error);
    assert_eq!((told.class, told.reason), (Transient, Reason::StorageFull), "{told}");
    assert!(told.detail.contains("No space left on device; free some room in pool `fast`"), "{told}");
}

/// The codes of a connection that broke, as they were seen (faults 15, 23); the same codes of another part are answers.
#[test]
fn a_broken_connection_is_told_from_an_answer_by_the_part_that_says_it() {
    let broken = |code, domain| RpcError { rpc: "", code, domain, message: String::new() }.is_broken_connection();
    for (code, domain) in [(38, 7), (1, 7), (39, 7), (1, 13), (6, 0), (6, 20)] {
        assert!(broken(code, domain), "{code} {domain}");
    }
    for (code, domain) in [(38, 38), (38, 18), (1, 10), (42, 10), (9, 7), (86, 10), (68, 10)] {
        assert!(!broken(code, domain), "{code} {domain}");
    }
}
