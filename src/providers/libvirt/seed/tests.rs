use std::io::Write;
use std::process::Command;

use super::*;

/// What `isoinfo` (package genisoimage) says of an image; `None`, with a line why, where there is no such program.
fn isoinfo(image: &[u8], args: &[&str]) -> Option<Vec<u8>> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(image).expect("written");
    match Command::new("isoinfo").args(args).arg("-i").arg(file.path()).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(output.stdout)
        }
        Err(error) => {
            println!("not checked: isoinfo: {error}");
            None
        }
    }
}

fn lines(image: &[u8], args: &[&str]) -> Option<String> {
    isoinfo(image, args).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn seed(user_data: &[u8]) -> Vec<u8> {
    let meta_data = meta_data("uid-1.1", "px-1");
    image(&Seed { user_data, meta_data: &meta_data, vendor_data: Some(b"#!/bin/sh\ntrue\n") }).expect("made")
}

/// One of each kind of fault 60, and lengths around the ends of sectors.
fn kinds() -> Vec<Vec<u8>> {
    let mut kinds: Vec<Vec<u8>> = [
        &b""[..],
        b"#cloud-config\n{}\n",
        b"#!/bin/sh\necho hello\n",
        b"Content-Type: multipart/mixed; boundary=\"x\"\nMIME-Version: 1.0\n\n--x\n\n#!/bin/sh\n--x--\n",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        b"## template: jinja\n#cloud-config\nhostname: {{ ds.meta_data.instance_id }}\n",
        b"#include\nhttps://example.com/user-data\n",
        b"\xef\xbb\xbf#cloud-config\n",
        b"#cloud-config\r\npackages:\r\n- squid\r\n",
        b"a\0b\0\0",
        b"no line feed at the end",
        b"\xff\xfe\x00\xd8",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    kinds.extend([2047, 2048, 2049, 1536 * 1024].map(pattern));
    kinds
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 31 + at / 256) % 251).expect("below 251")).collect()
}

#[test]
fn user_data_of_any_kind_is_in_the_image_byte_for_byte() {
    for user_data in kinds() {
        let image = seed(&user_data);
        assert_eq!(image.len() % 2048, 0);
        for way in ["-R", "-J"] {
            let Some(read) = isoinfo(&image, &[way, "-x", "/user-data"]) else { return };
            assert!(read == user_data, "{} bytes by {way}, {} read", user_data.len(), read.len());
        }
        let meta_data = isoinfo(&image, &["-R", "-x", "/meta-data"]).expect("was there before");
        assert_eq!(meta_data, b"instance-id: \"uid-1.1\"\nlocal-hostname: \"px-1\"\n");
        let vendor_data = isoinfo(&image, &["-R", "-x", "/vendor-data"]).expect("was there before");
        assert_eq!(vendor_data, b"#!/bin/sh\ntrue\n");
    }
}

#[test]
fn the_files_have_their_names_in_the_root_by_joliet_and_by_rock_ridge() {
    let image = seed(b"#cloud-config\n{}\n");
    for way in ["-R", "-J"] {
        let Some(list) = lines(&image, &[way, "-l"]) else { return };
        let files: Vec<_> = list.lines().filter(|line| line.starts_with('-')).collect();
        assert_eq!(files.len(), 3, "{list}");
        for name in ["user-data", "meta-data", "vendor-data"] {
            assert!(files.iter().any(|line| line.trim_end().ends_with(&[" ", name].concat())), "{name}: {list}");
        }
        assert_eq!(list.matches("Directory listing of").count(), 1, "{list}");
    }
}

#[test]
fn the_image_says_what_cloud_init_looks_for() {
    let Some(told) = lines(&seed(b""), &["-d"]) else { return };
    for line in
        ["CD-ROM is in ISO 9660 format", "Volume id: cidata", "Joliet with UCS level 3", "Rock Ridge signatures"]
    {
        assert!(told.contains(line), "{line}: {told}");
    }
}

#[test]
fn the_kernel_would_see_the_label_whatever_extension_it_reads() {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&seed(b"")).expect("written");
    let blkid =
        Command::new("blkid").args(["-p", "-o", "value", "-s", "LABEL", "-s", "TYPE"]).arg(file.path()).output();
    match blkid {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "cidata\niso9660\n"),
        Err(error) => println!("not checked: blkid: {error}"),
    }
}

#[test]
fn both_required_files_are_there_without_any_user_data() {
    let meta_data = meta_data("uid-1.1", "px-1");
    let image = image(&Seed { user_data: b"", meta_data: &meta_data, vendor_data: None }).expect("made");
    let Some(list) = lines(&image, &["-R", "-f"]) else { return };
    let mut files: Vec<_> = list.lines().collect();
    files.sort_unstable();
    assert_eq!(files, ["/meta-data", "/user-data"]);
    assert_eq!(isoinfo(&image, &["-R", "-x", "/user-data"]), Some(Vec::new()));
}

#[test]
fn what_is_absurdly_large_is_refused_with_its_name() {
    let user_data = vec![b'a'; LARGEST_FILE + 1];
    let refused = image(&Seed { user_data: &user_data, meta_data: "", vendor_data: None }).expect_err("too large");
    assert_eq!(refused, SeedError::TooLarge { file: "user-data", bytes: LARGEST_FILE + 1 });
    assert!(refused.to_string().contains("user-data"), "{refused}");
}

#[test]
fn no_user_data_shows_in_debug() {
    let seed = Seed { user_data: b"hunter2", meta_data: "", vendor_data: Some(b"hunter2") };
    assert!(!format!("{seed:?}").contains("hunter2"));
}

#[test]
fn meta_data_is_yaml_whatever_the_id_is() {
    let text = meta_data("a: \"b\"\n- c", "px");
    assert_eq!(text.lines().count(), 2, "{text}");
    let read: std::collections::BTreeMap<String, String> = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(read["instance-id"], "a: \"b\"\n- c");
    assert_eq!(read["local-hostname"], "px");
}

#[test]
fn a_host_name_is_one_dns_label() {
    let long = "a".repeat(62);
    let (dotted, cut) = (format!("{long}.b"), format!("{long}-b"));
    for (name, expected) in [
        ("px-1", "px-1"),
        ("px.1", "px-1"),
        ("PX_1", "px-1"),
        (".-px-.", "px"),
        ("", "proxy"),
        ("...", "proxy"),
        ("\u{e9}\0/", "proxy"),
        (&dotted, &long),
        (&cut, &long),
        (&"x".repeat(253), &"x".repeat(63)),
    ] {
        assert_eq!(hostname(name), expected, "{name:?}");
    }
}

#[test]
fn vendor_data_is_there_only_when_there_is_something_to_say() {
    assert_eq!(vendor_data(false, None), None);
    assert_eq!(vendor_data(false, Some(" \n")), None);
    assert_eq!(vendor_data(false, Some("#cloud-config\n{}")).as_deref(), Some(&b"#cloud-config\n{}"[..]));
}

#[test]
fn the_guest_agent_comes_by_a_script_and_not_by_keys_of_cloud_config() {
    let script = String::from_utf8(vendor_data(true, None).expect("some")).expect("UTF-8");
    assert!(script.starts_with("#!/bin/sh\n") && script.ends_with("exit 0\n"), "{script}");
    assert!(vendor_data(true, Some("")).is_some_and(|bytes| bytes == script.as_bytes()));
}

#[test]
fn the_script_is_one_that_a_shell_can_read() {
    let script = vendor_data(true, None).expect("some");
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(&script).expect("written");
    for shell in ["sh", "dash", "bash"] {
        match Command::new(shell).arg("-n").arg(file.path()).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => println!("not checked: {shell}: {error}"),
        }
    }
}

/// Runs the script with nothing in its path but programs that write down how they are called.
fn run_script(programs: &[(&str, &str)]) -> Option<(String, String)> {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    };
    for (name, then) in
        [("timeout", "[ \"$1\" = -k ] && shift 2\nshift\nexec \"$@\""), ("sleep", ""), ("env", "shift\nexec \"$@\"")]
            .iter()
            .chain(programs)
    {
        let log = log.display();
        write(name, &format!("#!/bin/sh\necho \"{name} $*\" >>{log}\n{then}\n"));
    }
    // The machine that tests may have the agent itself.
    let script = String::from_utf8(vendor_data(true, None)?).expect("UTF-8").replace("/usr/", "/nowhere/");
    write("script", &script);
    let path = folder.path().to_str().expect("UTF-8");
    let output = Command::new("/bin/sh").arg(folder.path().join("script")).env("PATH", path).output().expect("a shell");
    assert!(output.status.success(), "it must never fail the boot");
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), log))
}

#[test]
fn the_script_ends_when_nothing_can_be_installed() {
    let (said, log) = run_script(&[("apt-get", "exit 100"), ("systemctl", "")]).expect("a script");
    assert!(said.contains("could not be installed"), "{said}");
    assert_eq!(log.matches("\napt-get -q -y").count(), 10, "five attempts of update and install: {log}");
    assert!(log.contains("DPkg::Lock::Timeout=120") && !log.contains("systemctl"), "{log}");
    let (said, log) = run_script(&[]).expect("a script");
    assert!(said.contains("no package manager that is known"), "{said}");
    assert_eq!(log.matches("sleep ").count(), 4, "{log}");
}

#[test]
fn the_script_installs_by_each_package_manager_and_starts_without_waiting() {
    let made = "case \"$*\" in *qemu-guest-agent*) : >${0%/*}/qemu-ga; /bin/chmod 755 ${0%/*}/qemu-ga;; esac";
    for manager in ["apt-get", "dnf", "yum", "zypper", "apk", "pacman"] {
        let (said, log) = run_script(&[(manager, made), ("systemctl", ""), ("udevadm", "")]).expect("a script");
        assert!(said.contains("attempt 1 of 5") && !said.contains("attempt 2"), "{manager}: {said}");
        assert!(log.contains("systemctl --no-block start qemu-guest-agent"), "{manager}: {log}");
        assert!(log.contains("udevadm trigger"), "{manager}: {log}");
    }
    let (_, log) = run_script(&[("apk", made), ("rc-service", ""), ("rc-update", "")]).expect("a script");
    assert!(log.contains("rc-service qemu-guest-agent start"), "{log}");
}

#[test]
fn an_agent_that_is_there_is_only_started() {
    let (said, log) = run_script(&[("qemu-ga", ""), ("apt-get", ""), ("systemctl", "")]).expect("a script");
    assert!(said.is_empty() && !log.contains("apt-get"), "{said}{log}");
    assert!(log.contains("start qemu-guest-agent"), "{log}");
}

/// The parts as python's mail parser, which cloud-init uses, sees them: kind and content.
fn parts(archive: &[u8]) -> Option<Vec<(String, String)>> {
    const WALK: &str = "import sys,email,json\n\
        m=email.message_from_string(sys.stdin.read())\n\
        print(json.dumps([[p.get_content_type(),p.get_payload(decode=True).decode()] for p in m.walk() if not p.is_multipart()]))";
    let mut python = match Command::new("python3")
        .args(["-c", WALK])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
    {
        Ok(python) => python,
        Err(error) => {
            println!("not checked: python3: {error}");
            return None;
        }
    };
    python.stdin.take().expect("piped").write_all(archive).expect("written");
    let output = python.wait_with_output().expect("ends");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

#[test]
fn the_entrys_own_vendor_data_and_the_script_are_both_in_the_archive() {
    let script = String::from_utf8(vendor_data(true, None).expect("some")).expect("UTF-8");
    for extra in
        ["#cloud-config\npackages: [squid]\n", "#!/bin/sh\r\ntrue", "#include\nhttps://example.com\n", "\u{e9}\n"]
    {
        let archive = vendor_data(true, Some(extra)).expect("some");
        assert!(archive.starts_with(b"Content-Type: multipart/mixed"), "cloud-init knows it by its beginning");
        let Some(parts) = parts(&archive) else { return };
        let expected = [("text/plain", extra), ("text/x-shellscript", script.as_str())];
        assert_eq!(parts, expected.map(|(kind, text)| (kind.to_owned(), text.to_owned())));
    }
}

#[test]
fn an_entrys_own_archive_is_nested_and_not_wrapped_as_text() {
    let extra = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"b\"\n\n--b\nContent-Type: text/cloud-config\n\nruncmd: []\n--b--\n";
    let Some(parts) = parts(&vendor_data(true, Some(extra)).expect("some")) else { return };
    let kinds: Vec<_> = parts.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["text/cloud-config", "text/x-shellscript"]);
    assert_eq!(parts[0].1, "runcmd: []");
}

#[test]
fn the_same_entry_gives_the_same_vendor_data() {
    assert_eq!(vendor_data(true, Some("#!/bin/sh")), vendor_data(true, Some("#!/bin/sh")));
}
