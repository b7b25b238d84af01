//! The Squid configuration that we generate: what an instance listens on, whom it serves, and what it refuses to reach.
//!
//! Owns the text, for every provider that runs Squid itself. Pure: reads nothing, writes nothing, and never contains a
//! secret (passwords are behind the helper, as hashes, in a file of its own).
//!
//! # The rules of reach
//! An egress proxy must not be a door into the network that it stands in. In the order in which Squid asks them:
//!
//! 1. Without credentials, nothing (where credentials are asked for at all), not even a name is resolved.
//! 2. The operator's own probe targets that are names: as they are, at their port.
//! 3. A destination is refused if *any* address of it is in a refused range and not allowed at this port. "Any", as
//!    a name can answer with an allowed address and a forbidden one, and Squid would try both.
//! 4. CONNECT to 443 and plain requests to 80 go anywhere else.
//! 5. Other ports are for allowed destinations only, and again all addresses must be.
//!
//! A name that does not resolve passes the rules and ends as Squid's own DNS error, not as "denied": a dead resolver
//! must not look like a fault of the proxy. `negative_dns_ttl` keeps every answer for a minute, so that the lookup
//! for the rules and the one for the connection are the same.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use url::{Host, Url};

use crate::config::providers::AllowedDestination;

mod compare;
mod nets;

pub use compare::differences;

/// A way through the rules: an allowed destination, or one of the operator's own probe targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening(Way);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    Net(AllowedDestination),
    Name { host: Arc<str>, port: u16 },
}

impl Opening {
    pub fn destination(allowed: AllowedDestination) -> Self {
        Self(Way::Net(AllowedDestination { net: nets::canonical(allowed.net), port: allowed.port }))
    }

    /// The operator's `--probe-target`. `None` if the URL names no host and port that a proxy could be asked for.
    pub fn probe_target(url: &Url) -> Option<Self> {
        let port = url.port_or_known_default()?;
        match url.host()? {
            Host::Ipv4(address) => Some(Self::address(address.into(), port)),
            Host::Ipv6(address) => Some(Self::address(address.into(), port)),
            Host::Domain(name) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                // Anything else could mean something to Squid's own parser.
                let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
                let known = !name.is_empty() && !name.starts_with('.') && name.bytes().all(plain);
                known.then(|| Self(Way::Name { host: name.into(), port }))
            }
        }
    }

    /// The operator's `--echo-addr`. Listening everywhere, it is reached by loopback.
    pub fn echo(listens: SocketAddr) -> Self {
        Self::address(reachable(listens.ip()), listens.port())
    }

    fn address(address: IpAddr, port: u16) -> Self {
        Self::destination(AllowedDestination { net: address.into(), port: Some(port) })
    }
}

/// Where a listener on `address` is reached from the same machine.
pub fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        given => given,
    }
}

/// One configuration. Paths must not hold blanks or quotes: Squid splits its lines at them.
#[derive(Debug, Clone)]
pub struct SquidConf<'a> {
    /// Whose it is, for people who find the file.
    pub about: &'a str,
    pub listen: SocketAddr,
    pub openings: &'a [Opening],
    pub auth: Option<BasicAuth<'a>>,
    /// Where Squid's own messages go.
    pub cache_log: &'a Path,
    /// Whom Squid becomes when it is started as root.
    pub user: Option<&'a str>,
}

/// Basic authentication by Squid's NCSA helper.
#[derive(Debug, Clone, Copy)]
pub struct BasicAuth<'a> {
    pub helper: &'a Path,
    /// `user:hash` lines.
    pub passwords: &'a Path,
}

/// Networks a line: Squid cuts lines off at 8 KiB.
const NETS_A_LINE: usize = 8;

const HEAD: &str = "\
pid_filename none
access_log none
cache_store_log none
logfile_rotate 0
coredump_dir none
pinger_enable off
shutdown_lifetime 1 seconds
visible_hostname egress-proxy
httpd_suppress_version_string on
max_filedescriptors 1024

# Nothing is kept: a crawler wants what is there now.
cache deny all
cache_mem 16 MB
memory_pools off

# Nobody is told who asked, or that a proxy did.
via off
forwarded_for delete
request_header_access Via deny all
request_header_access Forwarded deny all
request_header_access X-Forwarded-For deny all
reply_header_access Via deny all
reply_header_access X-Cache deny all
reply_header_access X-Cache-Lookup deny all

# A dead target or resolver is told within the default timeout of a probe (10 s), as the target's fault.
connect_timeout 6 seconds
forward_timeout 9 seconds
dns_timeout 6 seconds
dns_retransmit_interval 2 seconds
negative_dns_ttl 1 minute
";

impl SquidConf<'_> {
    /// The whole text.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(8192);
        self.write(&mut out).expect("writing to a string cannot fail");
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "# Squid for {}, written by egress-proxies-operator: edits are lost.", self.about)?;
        if self.listen.ip().is_unspecified() {
            // Without an address Squid listens on all of them, of both families where the machine has both.
            writeln!(out, "http_port {}", self.listen.port())?;
        } else {
            writeln!(out, "http_port {}", self.listen)?;
        }
        writeln!(out, "cache_log {}", self.cache_log.display())?;
        if let Some(user) = self.user {
            writeln!(out, "cache_effective_user {user}")?;
        }
        out.push_str(HEAD);
        if let Some(auth) = self.auth {
            write_auth(out, auth)?;
        }
        self.write_reach(out)
    }

    fn write_reach(&self, out: &mut String) -> fmt::Result {
        let allowed: Vec<&AllowedDestination> = self.openings.iter().filter_map(Opening::net).collect();
        let everywhere: Vec<IpNet> = IpNet::aggregate(&nets_of(&allowed, |port| port.is_none()));
        let ports: BTreeSet<u16> = allowed.iter().filter_map(|a| a.port).collect();
        let at = |port: u16| IpNet::aggregate(&nets_of(&allowed, |p| p.is_none_or(|p| p == port)));

        out.push('\n');
        let openings: Vec<String> = self.openings.iter().map(ToString::to_string).collect();
        for line in openings.chunks(NETS_A_LINE) {
            writeln!(out, "{}{}", compare::OPEN_TO, line.join(" "))?;
        }
        out.push_str("acl connect method CONNECT\nacl plain proto HTTP\nacl port_443 port 443\nacl port_80 port 80\n");
        out.push_str("http_access deny manager\n");
        if self.auth.is_some() {
            out.push_str("acl known proxy_auth REQUIRED\nhttp_access deny !known\n");
        }
        let mut names = BTreeSet::new();
        for (host, port) in self.openings.iter().filter_map(Opening::name) {
            if names.insert((host, port)) {
                let n = names.len();
                writeln!(out, "acl target_{n} dstdomain -n {host}\nacl target_{n}_port port {port}")?;
                write_allow(out, &format!("target_{n} target_{n}_port"))?;
            }
        }

        out.push_str("\n# Refused, unless allowed (at that port, or at all).\n");
        let mut elsewhere = String::new();
        for &port in &ports {
            writeln!(out, "acl at_{port} port {port}")?;
            write_nets(out, &format!("refused_at_{port}"), &nets::subtract(&nets::refused(), &at(port)))?;
            writeln!(out, "http_access deny at_{port} refused_at_{port}")?;
            write!(elsewhere, "!at_{port} ")?;
        }
        write_nets(out, "refused", &nets::subtract(&nets::refused(), &everywhere))?;
        writeln!(out, "http_access deny {elsewhere}refused")?;
        out.push_str("http_access allow connect port_443\nhttp_access allow plain !connect port_80\n");

        for &port in &ports {
            writeln!(out, "\n# Allowed at port {port}.")?;
            write_nets(out, &format!("beyond_{port}"), &nets::subtract(&nets::everywhere(), &at(port)))?;
            writeln!(out, "http_access deny at_{port} beyond_{port}")?;
            write_nets(out, &format!("allowed_at_{port}"), &at(port))?;
            write_allow(out, &format!("at_{port} allowed_at_{port}"))?;
        }
        if !everywhere.is_empty() {
            out.push_str("\n# Allowed at every port.\n");
            write_nets(out, "beyond", &nets::subtract(&nets::everywhere(), &everywhere))?;
            out.push_str("http_access deny beyond\n");
            write_nets(out, "allowed", &everywhere)?;
            write_allow(out, "allowed")?;
        }
        out.push_str("http_access deny all\n");
        Ok(())
    }
}

impl Opening {
    fn net(&self) -> Option<&AllowedDestination> {
        match &self.0 {
            Way::Net(allowed) => Some(allowed),
            Way::Name { .. } => None,
        }
    }

    fn name(&self) -> Option<(&str, u16)> {
        match &self.0 {
            Way::Net(_) => None,
            Way::Name { host, port } => Some((host, *port)),
        }
    }
}

impl fmt::Display for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Way::Net(allowed) => allowed.fmt(f),
            Way::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

fn nets_of(allowed: &[&AllowedDestination], at: impl Fn(Option<u16>) -> bool) -> Vec<IpNet> {
    allowed.iter().filter(|a| at(a.port)).map(|a| a.net).collect()
}

fn write_auth(out: &mut String, auth: BasicAuth<'_>) -> fmt::Result {
    writeln!(out, "\nauth_param basic program {} {}", auth.helper.display(), auth.passwords.display())?;
    // Without `casesensitive` Squid lower-cases the user name before it asks the helper.
    out.push_str("auth_param basic children 2 startup=1 idle=1\nauth_param basic casesensitive on\n");
    // How long a password that was replaced may still pass.
    out.push_str("auth_param basic credentialsttl 1 minute\nauth_param basic realm egress\n");
    Ok(())
}

/// By CONNECT and by GET, where `condition` holds.
fn write_allow(out: &mut String, condition: &str) -> fmt::Result {
    writeln!(out, "http_access allow connect {condition}\nhttp_access allow plain !connect {condition}")
}

/// An acl over no network at all would be an error to Squid; `none` matches nothing.
fn write_nets(out: &mut String, name: &str, nets: &[IpNet]) -> fmt::Result {
    if nets.is_empty() {
        return writeln!(out, "acl {name} dst none");
    }
    for line in nets.chunks(NETS_A_LINE) {
        write!(out, "acl {name} dst")?;
        for net in line {
            write!(out, " {net}")?;
        }
        out.push('\n');
    }
    Ok(())
}

#[cfg(test)]
mod tests;
