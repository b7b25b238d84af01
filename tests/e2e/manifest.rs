//! Manifests as text.

/// A Proxy. Rendered as one YAML document.
#[derive(Clone)]
pub(crate) struct Manifest {
    name: String,
    flavor: String,
    attributes: Vec<(String, String)>,
    max_leases: u32,
    check: String,
    namespace: String,
    annotations: Vec<(String, String)>,
}

/// A Proxy of entry `local`, probed each second, with its own name as attribute `n`.
pub(crate) fn managed(name: &str) -> Manifest {
    Manifest::new(name, "managed: {provider: local}".into())
}

/// A Proxy that somebody else runs, on this port.
pub(crate) fn external(name: &str, port: u16) -> Manifest {
    Manifest::new(name, format!("external: {{url: \"http://127.0.0.1:{port}\"}}"))
}

impl Manifest {
    fn new(name: &str, flavor: String) -> Self {
        Self {
            name: name.into(),
            flavor,
            attributes: vec![("n".into(), name.into())],
            max_leases: 1,
            check: "interval: 1s, timeout: 1s, failureThreshold: 2".into(),
            namespace: "crawl".into(),
            annotations: Vec::new(),
        }
    }

    pub(crate) fn flavor(self, flavor: &str) -> Self {
        Self { flavor: flavor.into(), ..self }
    }

    pub(crate) fn attribute(mut self, key: &str, value: &str) -> Self {
        self.attributes.push((key.into(), value.into()));
        self
    }

    /// One of ours, without its domain.
    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.push((format!("crawl.example.com/{key}"), value.into()));
        self
    }

    pub(crate) fn max_leases(self, max_leases: u32) -> Self {
        Self { max_leases, ..self }
    }

    #[allow(dead_code, reason = "the tests of a cluster have one each")]
    pub(crate) fn namespace(self, namespace: &str) -> Self {
        Self { namespace: namespace.into(), ..self }
    }

    /// The inside of `healthCheck`.
    pub(crate) fn check(self, check: &str) -> Self {
        Self { check: check.into(), ..self }
    }

    pub(crate) fn yaml(&self) -> String {
        let pairs = |pairs: &[(String, String)]| {
            pairs.iter().map(|(key, value)| format!("{key}: \"{value}\"")).collect::<Vec<_>>().join(", ")
        };
        format!(
            "---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata:\n  name: {}\n  namespace: {}\n  \
             annotations: {{{}}}\nspec:\n  {}\n  attributes: {{{}}}\n  maxLeases: {}\n  healthCheck: {{{}}}\n",
            self.name,
            self.namespace,
            pairs(&self.annotations),
            self.flavor,
            pairs(&self.attributes),
            self.max_leases,
            self.check
        )
    }
}

/// A labelled Secret with a user and password.
pub(crate) fn secret(name: &str, username: &str, password: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: crawl\n  labels: \
         {{crawl.example.com/proxy-secret: \"true\"}}\nstringData: {{username: \"{username}\", password: \"{password}\"}}\n"
    )
}
