use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use egress_actors::domain::error::Class;
use tempfile::TempDir;

use super::*;

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; install openssh-client and openssl"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn made(dir: &Path, name: &str, args: &[&str]) -> String {
    let path = dir.join(name);
    let path = path.to_str().unwrap();
    run("ssh-keygen", &[&["-q", "-f", path], args].concat());
    fs::read_to_string(path).unwrap()
}

fn outcome(text: &str) -> String {
    match key::parse(text.as_bytes()) {
        Ok(key) => key.algorithm().to_string(),
        Err(error) => {
            let error = error.told(Path::new("/k"));
            assert_eq!(error.class, Class::Permanent);
            assert!(error.detail.len() < 300, "{error}");
            error.to_string()
        }
    }
}

#[test]
fn each_kind_of_key_file_is_read_or_told_what_is_wrong_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ed = made(dir, "ed", &["-t", "ed25519", "-N", ""]);
    let public = fs::read_to_string(dir.join("ed.pub")).unwrap();
    let rsa_pem = made(dir, "rsa_pem", &["-t", "rsa", "-b", "2048", "-m", "PEM", "-N", ""]);
    let indented: String = ed.lines().map(|line| format!("    {line}  \n")).collect();
    let openssl = |args: &[&str]| {
        let out = dir.join("out");
        run("openssl", &[args, &["-out", out.to_str().unwrap()]].concat());
        fs::read_to_string(out).unwrap()
    };
    let ed_path = dir.join("rsa_pem");
    let pem = ed_path.to_str().unwrap();
    let traditional = ["rsa", "-traditional", "-passout", "pass:x", "-in", pem];
    let encrypted = |cipher| openssl(&[&traditional[..1], &[cipher], &traditional[1..]].concat());
    let body = ed.lines().nth(1).unwrap();
    let rows = [
        (ed.clone(), "ssh-ed25519"),
        (ed.replace('\n', "\r\n"), "ssh-ed25519"),
        (ed.trim_end().to_owned(), "ssh-ed25519"),
        (format!("\u{feff}\n\n{ed}\n\n"), "ssh-ed25519"),
        (indented, "ssh-ed25519"),
        (ed.replace('\n', " \n"), "ssh-ed25519"),
        (made(dir, "p256", &["-t", "ecdsa", "-b", "256", "-N", ""]), "ecdsa-sha2-nistp256"),
        (made(dir, "p384", &["-t", "ecdsa", "-b", "384", "-N", ""]), "ecdsa-sha2-nistp384"),
        (made(dir, "p521", &["-t", "ecdsa", "-b", "521", "-N", ""]), "ecdsa-sha2-nistp521"),
        (made(dir, "p256_pem", &["-t", "ecdsa", "-b", "256", "-m", "PEM", "-N", ""]), "ecdsa-sha2-nistp256"),
        (made(dir, "p256_8", &["-t", "ecdsa", "-b", "256", "-m", "PKCS8", "-N", ""]), "ecdsa-sha2-nistp256"),
        (openssl(&["genpkey", "-algorithm", "ed25519"]), "ssh-ed25519"),
        // Needs the feature `rsa` of russh.
        (made(dir, "rsa", &["-t", "rsa", "-b", "2048", "-N", ""]), "ssh-rsa"),
        (rsa_pem.clone(), "ssh-rsa"),
        (made(dir, "rsa_8", &["-t", "rsa", "-b", "2048", "-m", "PKCS8", "-N", ""]), "ssh-rsa"),
        (made(dir, "ed_x", &["-t", "ed25519", "-N", "xxxxx"]), "SSHKeyEncrypted: the SSH key /k is encrypted"),
        (made(dir, "rsa_x", &["-t", "rsa", "-m", "PEM", "-N", "xxxxx"]), "SSHKeyEncrypted"),
        (made(dir, "rsa_8x", &["-t", "rsa", "-m", "PKCS8", "-N", "xxxxx"]), "SSHKeyEncrypted"),
        (made(dir, "ec_x", &["-t", "ecdsa", "-m", "PEM", "-N", "xxxxx"]), "SSHKeyEncrypted"),
        (encrypted("-aes256"), "SSHKeyEncrypted"),
        (encrypted("-des3"), "SSHKeyEncrypted"),
        ("PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: aes256-cbc\nComment: x\n".to_owned(), "SSHKeyEncrypted"),
        ("PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\nComment: x\n".to_owned(), "cannot be decoded"),
        (public, "is a public key"),
        (String::new(), "is empty"),
        ("\n  \n".to_owned(), "is empty"),
        ("hello".to_owned(), "has no `-----BEGIN` line"),
        (body.to_owned(), "has no `-----BEGIN` line"),
        (ed.replace("-----END OPENSSH PRIVATE KEY-----", ""), "is cut off"),
        (ed.replace(body, ""), "cannot be decoded"),
        (ed.replace(body, &body[..20]), "cannot be decoded"),
        (ed.replace(body, "%%%%"), "cannot be decoded"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----".to_owned(), "has no private key in it"),
        ("-----BEGIN DSA PRIVATE KEY-----\nAAAA\n-----END DSA PRIVATE KEY-----".to_owned(), "cannot be decoded"),
    ];
    for (text, says) in rows {
        let said = outcome(&text);
        assert!(said.contains(says), "{says}: {said}");
        assert!(!said.contains(&body[..16]), "no part of the key is told");
    }
    assert_eq!(key::parse(&[0xff, 0xfe, 0]).unwrap_err(), key::BadKey::Invalid("is not text"));
}

struct Entry {
    _dir: TempDir,
    key: PathBuf,
    known_hosts: PathBuf,
    files: MaterialFiles,
}

fn entry() -> Entry {
    let dir = tempfile::tempdir().unwrap();
    let (key, known_hosts) = (dir.path().join("key"), dir.path().join("known_hosts"));
    let files = MaterialFiles::new(key.clone(), known_hosts.clone());
    Entry { _dir: dir, key, known_hosts, files }
}

#[tokio::test]
async fn a_secret_that_comes_changes_or_is_corrected_counts_without_a_restart() {
    let entry = entry();
    let read = || entry.files.read();
    let told = |error: OpError| (error.class, error.reason);
    let missing = (Class::Transient, Reason::SSHMaterialMissing);
    let error = read().await.unwrap_err();
    assert!(error.detail.contains("key is not there; is the Secret made"), "{error}");
    assert_eq!(told(error), missing);

    made(entry.key.parent().unwrap(), "key", &["-t", "ed25519", "-N", "xxxxx"]);
    let error = read().await.unwrap_err();
    assert!(error.detail.contains("known_hosts is not there"), "{error}");
    assert_eq!(told(error), missing);

    fs::write(&entry.known_hosts, "").unwrap();
    assert_eq!(told(read().await.unwrap_err()), (Class::Permanent, Reason::SSHKeyEncrypted));
    fs::write(&entry.key, "x").unwrap();
    assert_eq!(told(read().await.unwrap_err()), (Class::Permanent, Reason::SSHKeyInvalid));
    assert_eq!(told(read().await.unwrap_err()), (Class::Permanent, Reason::SSHKeyInvalid));

    fs::remove_file(&entry.key).unwrap();
    made(entry.key.parent().unwrap(), "key", &["-t", "ed25519", "-N", ""]);
    let first = read().await.unwrap();
    assert!(Arc::ptr_eq(&first, &read().await.unwrap()), "unchanged files are parsed once");

    fs::write(&entry.known_hosts, b"h ssh-ed25519 \xff\xff\n@cert-authority * x y\n").unwrap();
    let second = read().await.unwrap();
    assert_ne!(first.fingerprint(), second.fingerprint());
    assert_eq!(second.problems().len(), 2, "{:?}", second.problems());

    fs::remove_file(&entry.known_hosts).unwrap();
    assert_eq!(told(read().await.unwrap_err()), missing);
}

#[tokio::test]
async fn what_is_no_small_file_is_refused_and_does_not_hold_the_reader() {
    let entry = entry();
    fs::create_dir(&entry.key).unwrap();
    let error = entry.files.read().await.unwrap_err();
    assert!(error.detail.contains("is not a file"), "{error}");
    fs::remove_dir(&entry.key).unwrap();
    run("mkfifo", &[entry.key.to_str().unwrap()]);
    assert_eq!(entry.files.read().await.unwrap_err().class, Class::Transient);
    fs::remove_file(&entry.key).unwrap();
    fs::write(&entry.key, vec![b'a'; 65 << 10]).unwrap();
    let error = entry.files.read().await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::SSHKeyInvalid));
    assert!(error.detail.contains("is larger than 64 KiB"), "{error}");
}

#[tokio::test]
async fn no_secret_is_in_a_debug() {
    let entry = entry();
    let text = made(entry.key.parent().unwrap(), "key", &["-t", "ed25519", "-N", ""]);
    fs::write(&entry.known_hosts, "").unwrap();
    let material = entry.files.read().await.unwrap();
    let shown = format!("{material:?} {:?}", entry.files);
    assert!(shown.contains("ssh-ed25519 SHA256:"), "{shown}");
    for line in text.lines() {
        assert!(!shown.contains(line), "{shown}");
    }
}
