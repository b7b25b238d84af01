//! What comes out of a file, and the table of files that are not right.

use proptest::prelude::*;

use super::*;

const PROXY: &str = "\
apiVersion: crawl.example.com/v1alpha1
kind: Proxy
metadata:
  name: px-1
  namespace: crawl
  annotations: {crawl.example.com/drain: 'true', other.example.com/x: y}
spec:
  managed:
    provider: local
    cloudInit:
      inline: |
        #cloud-config
        ----
         ---
  maxLeases: 4
";

const SECRET: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: bought, labels: {crawl.example.com/proxy-secret: 'true'}}
type: Opaque
stringData: {username: u, password: hunter2}
data: {username: b3Zlci1ydWxlZA==, token: AAEC}
";

/// Every problem of a file as `line: message`, those of objects too.
fn problems(text: &[u8]) -> Vec<String> {
    let content = read(text);
    let of_objects = content.documents.iter().filter_map(|document| match &document.object {
        Object::Proxy(_, Err(trouble)) | Object::Secret(_, Err(trouble)) => Some(trouble),
        _ => None,
    });
    content.problems.iter().chain(of_objects).map(|t| format!("{}: {}", t.line, t.message)).collect()
}

fn spec(lines: &str) -> String {
    format!("apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: px-1}}\nspec:\n{lines}")
}

#[test]
fn several_documents_are_read_with_their_lines() {
    let text = format!("# a comment\n---\n{PROXY}---\n\n---\n{SECRET}...\n%YAML 1.2\n--- # last\n{PROXY}");
    let content = read(text.as_bytes());
    assert_eq!(problems(text.as_bytes()), Vec::<String>::new());
    assert!(content.complete);
    let found: Vec<_> = content
        .documents
        .iter()
        .map(|document| match &document.object {
            Object::Proxy(key, Ok(_)) => (document.line, format!("proxy {key}")),
            Object::Secret(name, Ok(_)) => (document.line, format!("secret {name}")),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        found,
        [
            (3, "proxy crawl/px-1".to_owned()),
            (21, "secret default/bought".to_owned()),
            (30, "proxy crawl/px-1".to_owned())
        ]
    );
    let Object::Proxy(_, Ok(manifest)) = &content.documents[0].object else { panic!("a proxy") };
    assert_eq!(manifest.annotations.keys().collect::<Vec<_>>(), ["crawl.example.com/drain"], "only ours are kept");
    let inline = manifest.spec.managed.as_ref().unwrap().cloud_init.as_ref().unwrap().inline.as_deref();
    assert_eq!(inline, Some("#cloud-config\n----\n ---\n"), "dashes inside a block are no marker");
}

#[test]
fn a_secret_is_decoded_and_its_string_data_wins() {
    let content = read(SECRET.as_bytes());
    let Object::Secret(_, Ok(secret)) = &content.documents[0].object else { panic!("{:?}", content.documents) };
    assert!(secret.labelled);
    let value = |key: &str| &*secret.values[key].0;
    assert_eq!((value("username"), value("password"), value("token")), (&b"u"[..], &b"hunter2"[..], &[0, 1, 2][..]));
    assert!(!format!("{content:?}").contains("hunter2"));
}

#[test]
fn a_secret_without_the_label_is_read_as_such() {
    for labels in ["{}", "{crawl.example.com/proxy-secret: 'false'}"] {
        let text = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: a, labels: {labels}}}\n");
        let content = read(text.as_bytes());
        let Object::Secret(_, Ok(secret)) = &content.documents[0].object else { panic!("a secret") };
        assert!(!secret.labelled, "{labels}");
    }
}

#[test]
fn what_the_server_prints_can_be_a_manifest() {
    let text = "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata:\n  name: a\n  uid: x\n  generation: 3\n  \
                resourceVersion: '7'\n  creationTimestamp: 2026-01-01T00:00:00Z\n  finalizers: [a]\n\
                spec: {external: {url: 'http://a:1'}}\nstatus: {phase: Ready}\n";
    assert_eq!(problems(text.as_bytes()), Vec::<String>::new());
}

#[test]
fn what_is_wrong_with_a_whole_document_is_told_at_its_first_line_and_not_at_the_marker_before_it() {
    let good = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\n";
    for (bad, line, words) in [
        ("---\na: 1\n", 5, "has no `kind`"),
        ("---\n\n# the second\na: 1\n", 7, "has no `kind`"),
        ("--- # here\nkind: List\n", 5, "`List`"),
        ("--- {a: 1}\n", 4, "has no `kind`"),
        ("---\njust text\n", 5, "must be a map"),
        ("---\n\nkind: Secret\nmetadata: {name: b}\n", 6, "apiVersion"),
        ("---\n\nkind: Proxy\nmetadata: {name: b}\napiVersion: crawl.example.com/v1alpha1\n", 8, "`spec` is missing"),
        ("...\n\na: 1\n", 6, "has no `kind`"),
    ] {
        let told = problems(format!("{good}{bad}").as_bytes());
        assert!(
            told.len() == 1 && told[0].starts_with(&format!("{line}: ")) && told[0].contains(words),
            "{bad}: {told:?}"
        );
    }
}

#[test]
fn every_bad_file_is_told_with_its_line_and_a_way_out() {
    let cases: Vec<(String, &str)> = vec![
        ("spec: {a: b".into(), "1: is not valid YAML here: unclosed bracket '{' (column 7)"),
        (
            "kind: Proxy\nmetadata:\n\tname: a".into(),
            "3: is not valid YAML here: tabs disallowed within this context (block indentation) (column 2)",
        ),
        ("just text".into(), "1: must be a map, that is `key: value` lines indented below it (column 1)"),
        ("- a\n- b\n".into(), "1: must be a map, that is `key: value` lines indented below it (column 1)"),
        ("a: 1".into(), "1: has no `kind`: write `kind: Proxy` or `kind: Secret`"),
        ("kind: [a]".into(), "1: kind: must be a text (column 7)"),
        (
            "kind: List\nitems: []".into(),
            "1: kind `List` is not read: give each object a document of its own, with `---` between them",
        ),
        (
            "kind: ConfigMap\nmetadata: {name: a}".into(),
            "1: kind `ConfigMap` is not read here and was skipped: only Proxy and Secret are",
        ),
        ("kind: Proxy\nmetadata: {}".into(), "1: a `Proxy` without `metadata.name`: give it one"),
        (
            "kind: Proxy\nmetadata: {name: A_b}".into(),
            "1: metadata.name: `A_b` must be lower-case letters, digits, `-` and `.`, start and end with a letter or digit, at most 253 bytes",
        ),
        (
            "\n---\n\nkind: Secret\nmetadata: {name: a, namespace: ../x}".into(),
            "4: metadata.namespace: `../x` must be lower-case letters, digits and `-`, start and end with a letter or digit, at most 63 bytes",
        ),
        (
            "apiVersion: v1\nkind: Proxy\nmetadata: {name: a}".into(),
            "1: apiVersion: `v1` given, must be `crawl.example.com/v1alpha1` for kind Proxy",
        ),
        ("kind: Secret\nmetadata: {name: a}".into(), "1: apiVersion: nothing given, must be `v1` for kind Secret"),
        (
            "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: a}".into(),
            "3: field `spec` is missing: add it (column 1)",
        ),
        (
            spec("  external: {url: 'http://a:1'}\nspce: 1\n"),
            "6: spce: is not a known field: remove it, or correct it to one of apiVersion, kind, metadata, spec, status (column 1)",
        ),
        (
            spec("  external: {url: 'http://a:1'}\n  maxLease: 1\n"),
            "6: spec.maxLease: is not a known field: remove it, or correct it to one of managed, external, attributes, maxLeases, healthCheck, recreateAfter, paused (column 3)",
        ),
        (
            spec("  managed: {provider: a, placement: {host: b}}\n"),
            "5: spec.managed.placement.host: is not a known field: remove it, or correct it to one of zone, image, size (column 38)",
        ),
        (spec("  managed: {}\n"), "5: spec.managed: field `provider` is missing: add it (column 12)"),
        (spec("  maxLeases: four\n"), "5: spec.maxLeases: must be a whole number (column 14)"),
        (spec("  maxLeases: 1.5\n"), "5: spec.maxLeases: must be a whole number (column 14)"),
        (spec("  maxLeases: 99999999999999999999\n"), "5: spec.maxLeases: must be a whole number (column 14)"),
        (spec("  paused: maybe\n"), "5: spec.paused: must be true or false (column 11)"),
        (
            spec("  managed: local\n"),
            "5: spec.managed: must be a map, that is `key: value` lines indented below it (column 12)",
        ),
        (spec("  external: {url: [a]}\n"), "5: spec.external.url: must be a text (column 19)"),
        (
            spec("  healthCheck: {expectStatus: 204}\n"),
            "5: spec.healthCheck.expectStatus: must be a list, as in `[a, b]` (column 31)",
        ),
        (
            spec("  healthCheck: {expectStatus: [ok]}\n"),
            "5: spec.healthCheck.expectStatus[0]: must be a whole number (column 32)",
        ),
        (
            spec("  attributes: {tier: }\n"),
            "5: spec.attributes.tier: has no value: give a text, or remove the line (column 20)",
        ),
        (spec("  paused: true\n  paused: false\n"), "6: spec: `paused` is given twice: keep one (column 3)"),
        (
            spec("  managed: {provider: a, cloudInit: 'password: hunter2'}\n"),
            "5: spec.managed.cloudInit: must be a map, that is `key: value` lines indented below it (column 37)",
        ),
        (spec("  managed: *nothing\n"), "5: is not valid YAML here: alias references unknown anchor (column 12)"),
        (
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {password: hunter2!}".into(),
            "1: data.`password`: is not base64: encode it, or write it as it is under `stringData`",
        ),
        (
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {password: [hunter2]}".into(),
            "4: stringData.password: must be a text (column 24)",
        ),
        (
            "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringdata: {password: hunter2}".into(),
            "4: stringdata: is not a known field: remove it, or correct it to one of apiVersion, kind, metadata, type, immutable, data, stringData (column 1)",
        ),
        (
            "kind: Proxy\nmetadata: {name: 'a\0'}".into(),
            "2: has a NUL character: the file is damaged, or not completely written",
        ),
        (
            format!("kind: Proxy\nmetadata: {{name: a}}\nx: {}{}", "[".repeat(60), "]".repeat(60)),
            "3: x[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]…: is too large or too deep for one object: split it, and use fewer aliases (column 35)",
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let found = problems(text.as_bytes());
        if found != [expected] {
            wrong.push(format!("{text:?}\n  said {found:?}\n  not  [{expected:?}]"));
        }
        assert!(!found.concat().contains("hunter2"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(problems(b"kind: Proxy\n# \xff"), ["2: is not UTF-8 text: save the file as UTF-8"]);
}

#[test]
fn a_bad_document_does_not_harm_the_others_and_makes_the_file_incomplete() {
    let text = format!("{PROXY}---\nspec: {{\n---\n{SECRET}");
    let content = read(text.as_bytes());
    assert_eq!((content.documents.len(), content.problems.len(), content.complete), (2, 1, false));
    assert_eq!(content.problems[0].line, 17);
}

#[test]
fn an_alias_bomb_is_refused_quickly() {
    use std::fmt::Write as _;
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let before = i - 1;
        writeln!(bomb, "a{i}: &a{i} [{}]", vec![format!("*a{before}"); 8].join(", ")).unwrap();
    }
    bomb.push_str(
        "kind: Proxy\nmetadata: {name: a}\napiVersion: crawl.example.com/v1alpha1\nspec: {attributes: *a11}\n",
    );
    assert!(!read(bomb.as_bytes()).complete);
}

#[test]
fn every_beginning_of_a_file_is_either_whole_or_incomplete() {
    // A half-written file: what is missing from it must not count as removed.
    let whole = format!("{PROXY}---\n{SECRET}");
    let second = whole.find("---\napiVersion: v1").unwrap();
    for end in (second + 5)..whole.find("stringData").unwrap() {
        if !whole.is_char_boundary(end) {
            continue;
        }
        let content = read(&whole.as_bytes()[..end]);
        let seen =
            content.documents.iter().any(|d| matches!(&d.object, Object::Secret(name, _) if &*name.name == "bought"));
        assert!(seen || !content.complete, "cut at {end}: {:?}", &whole[second..end]);
    }
}

proptest! {
    #[test]
    fn random_mutations_of_a_manifest_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 1..8)
    ) {
        let mut bytes = format!("{PROXY}---\n{SECRET}").into_bytes();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let content = read(&bytes);
        for document in &content.documents {
            if let Object::Proxy(_, Ok(manifest)) = &document.object {
                let mut proxy = crate::crd::proxy::Proxy::new("a", manifest.spec.clone());
                proxy.metadata.uid = Some("u".into());
                proxy.metadata.annotations = Some(manifest.annotations.clone());
                let _ = crate::crd::accept::accept(&proxy, Some(&manifest.spec));
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[-a:{}\\[\\]&*!|>'\" \n\t#%]{0,80}") {
        read(&bytes);
        read(text.as_bytes());
    }
}
