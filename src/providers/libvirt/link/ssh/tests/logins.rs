//! Host keys and user keys.

use std::fs;

use super::super::super::material::MaterialFiles;
use super::sshd::{KINDS, Sshd, host_keys, key, make_key, public};
use super::*;

#[tokio::test]
async fn any_one_of_the_hosts_keys_in_known_hosts_is_enough() {
    let sshd = Sshd::start("");
    for kind in KINDS {
        let dialled = sshd.dial_with(&sshd.known(kind), "ed25519", &SshLimits::default()).await;
        assert!(!dialled.unwrap_or_else(|error| panic!("{kind}: {error}")).is_closed());
    }
}

#[tokio::test]
async fn a_host_with_one_kind_of_key_is_dialled() {
    for kind in KINDS {
        let sshd = Sshd::start(&host_keys(&[kind]));
        let dialled = sshd.dial_with(&sshd.known(kind), "ed25519", &SshLimits::default()).await;
        dialled.unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}

#[tokio::test]
async fn a_hashed_entry_with_a_port_is_found() {
    let sshd = Sshd::start("");
    let path = sshd.dir.path().join("known_hosts");
    fs::write(&path, sshd.known("ecdsa")).unwrap();
    let made = std::process::Command::new("ssh-keygen").args(["-q", "-H", "-f"]).arg(&path).output().unwrap();
    assert!(made.status.success());
    let hashed = fs::read_to_string(&path).unwrap();
    assert!(hashed.starts_with("|1|"));
    sshd.dial_with(&hashed, "ed25519", &SshLimits::default()).await.unwrap();
}

#[tokio::test]
async fn what_known_hosts_does_not_have_is_refused_with_the_fingerprint() {
    let sshd = Sshd::start("");
    let seen = std::process::Command::new("ssh-keygen").args(["-l", "-f"]).arg(key("ed25519")).output().unwrap();
    let seen = String::from_utf8(seen.stdout).unwrap();
    let fingerprint = seen.split(' ').nth(1).unwrap();
    let port = sshd.port;
    let only_rsa = Sshd::start(&host_keys(&["ed25519"]));
    let rows = [
        (
            &sshd,
            String::new(),
            format!("known_hosts has no line for `[127.0.0.1]:{port}`: if it is the right one, add it"),
        ),
        (&sshd, format!("127.0.0.1 {}", public("ed25519")), "without its port".to_owned()),
        (&sshd, format!("@cert-authority * {}", public("ed25519")), "nothing of use for".to_owned()),
        (&only_rsa, only_rsa.known("rsa"), "known_hosts has only ssh-rsa for".to_owned()),
    ];
    for (sshd, known, says) in rows {
        let error = refused(sshd.dial_with(&known, "ed25519", &SshLimits::default()).await);
        assert_eq!(told(&error), (Class::Permanent, Reason::HostKeyUnknown));
        assert!(error.detail.contains(&says) && error.detail.contains(fingerprint), "{says}: {error}");
    }
    eventually("no socket is left", || sshd.our_sockets().is_empty()).await;
}

#[tokio::test]
async fn a_revoked_key_is_refused_though_another_line_knows_it() {
    let sshd = Sshd::start(&host_keys(&["ed25519"]));
    let known = format!("{}@revoked * {}", sshd.known("ed25519"), public("ed25519"));
    let error = refused(sshd.dial_with(&known, "ed25519", &SshLimits::default()).await);
    assert_eq!(told(&error), (Class::Permanent, Reason::HostKeyMismatch));
    assert!(error.detail.contains("line 2 of known_hosts revokes"), "{error}");
}

#[tokio::test]
async fn a_host_whose_other_key_is_revoked_is_dialled_by_the_good_one() {
    let sshd = Sshd::start("");
    let known = format!("{}@revoked * {}", sshd.known("rsa"), public("ed25519"));
    sshd.dial_with(&known, "ed25519", &SshLimits::default()).await.unwrap();
}

#[tokio::test]
async fn a_host_that_was_made_anew_is_refused_until_the_file_is_replaced() {
    let sshd = Sshd::start("");
    let path = sshd.dir.path().join("known");
    fs::write(&path, format!("[127.0.0.1]:{} {}", sshd.port, public("other"))).unwrap();
    let files = MaterialFiles::new(key("ed25519"), path.clone());
    let dial = async || {
        let material = files.read().await.unwrap();
        SshConnection::dial(&sshd.target(), &[sshd.addr()], &material, &SshLimits::default()).await
    };
    let error = refused(dial().await);
    assert_eq!(told(&error), (Class::Permanent, Reason::HostKeyMismatch));
    assert!(error.detail.contains("line 1 of known_hosts has another one"), "{error}");
    fs::write(&path, sshd.known("ed25519")).unwrap();
    dial().await.unwrap();
}

#[tokio::test]
async fn a_key_that_the_host_does_not_take_is_told_with_the_user() {
    for settings in ["", "MaxAuthTries 1", "AllowUsers nobody-else"] {
        let sshd = Sshd::start(settings);
        let user_key = if settings.starts_with("Allow") { "ed25519" } else { "other" };
        let error = refused(sshd.dial_with(&sshd.known("ed25519"), user_key, &SshLimits::default()).await);
        assert_eq!(told(&error), (Class::Permanent, Reason::SSHAuthFailed), "{settings}: {error}");
        let user = sshd.target().user;
        assert!(error.detail.contains(&format!("for user `{user}`: add it to authorized_keys")), "{error}");
        eventually("no socket is left", || sshd.our_sockets().is_empty()).await;
    }
}

#[tokio::test]
async fn a_key_that_is_not_enough_is_told_as_that() {
    let sshd = Sshd::start("KbdInteractiveAuthentication yes\nAuthenticationMethods publickey,keyboard-interactive");
    let error = refused(sshd.dial_with(&sshd.known("ed25519"), "ed25519", &SshLimits::default()).await);
    assert_eq!(told(&error), (Class::Permanent, Reason::SSHAuthFailed));
    assert!(error.detail.contains("wants more (keyboard-interactive)"), "{error}");
}

#[tokio::test]
async fn a_host_that_takes_no_keys_is_told_as_that() {
    let sshd = Sshd::start("PubkeyAuthentication no\nKbdInteractiveAuthentication yes");
    let error = refused(sshd.dial_with(&sshd.known("ed25519"), "ed25519", &SshLimits::default()).await);
    assert_eq!(told(&error), (Class::Permanent, Reason::SSHAuthFailed));
    assert!(error.detail.contains("takes no keys for user"), "{error}");
}

#[tokio::test]
async fn an_rsa_key_logs_in_with_either_sha_2_and_never_with_sha_1() {
    for algorithms in ["rsa-sha2-512", "rsa-sha2-256", "rsa-sha2-512,rsa-sha2-256"] {
        let sshd = Sshd::start(&format!("PubkeyAcceptedAlgorithms {algorithms}"));
        let dialled = sshd.dial_with(&sshd.known("ed25519"), "rsa", &SshLimits::default()).await;
        dialled.unwrap_or_else(|error| panic!("{algorithms}: {error}"));
    }
    let sshd = Sshd::start("PubkeyAcceptedAlgorithms ssh-rsa");
    let error = refused(sshd.dial_with(&sshd.known("ed25519"), "rsa", &SshLimits::default()).await);
    assert_eq!(told(&error), (Class::Permanent, Reason::SSHAuthFailed));
}

#[tokio::test]
async fn a_forced_command_a_shell_that_refuses_and_no_sessions_at_all_do_not_matter() {
    for settings in ["ForceCommand /bin/false", "ForceCommand /bin/cat", "MaxSessions 0"] {
        let sshd = Sshd::start(settings);
        assert!(!sshd.dial(&SshLimits::default()).await.is_closed(), "{settings}");
    }
}

#[tokio::test]
async fn a_second_key_of_a_rotation_counts() {
    let sshd = Sshd::start("");
    let new = sshd.dir.path().join("new");
    make_key(&new, "ed25519");
    let new = fs::read_to_string(new.with_extension("pub")).unwrap();
    let known = format!("[127.0.0.1]:{} {new}{}", sshd.port, sshd.known("ed25519"));
    sshd.dial_with(&known, "ed25519", &SshLimits::default()).await.unwrap();
}
