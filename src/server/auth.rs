//! Who may speak to us: tokens, and without any, clients of this machine that are not web pages.
//!
//! Owns the digests of the tokens, never their text. Comparing digests in constant time tells an attacker neither how
//! long a token is nor how far a guess was right. Which status follows is said in `error`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::{HeaderMap, Uri, header};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::error::{Code, Problem};

/// The name of the token that `DISCOVERY_TOKEN` gives, and of everybody where there is none.
const DEFAULT: &str = "default";

/// Who asks: the name of the token, never its text. Leases belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub token: Arc<str>,
}

/// What is kept of a token's text.
#[derive(Clone)]
struct Digest([u8; 32]);

impl Digest {
    fn of(text: &[u8]) -> Self {
        Self(Sha256::digest(text).into())
    }

    fn matches(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }
}

/// A token and what it may do. Scopes and quotas will stand here.
#[derive(Clone)]
struct Token {
    name: Arc<str>,
    digest: Digest,
}

/// The tokens of one server; none at all means that only this machine is served.
#[derive(Clone, Default)]
pub struct Tokens(Vec<Token>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|token| &token.name)).finish()
    }
}

impl Tokens {
    /// One token, as an environment variable gives it.
    pub fn one(token: Option<&SecretString>) -> Self {
        let token =
            token.map(|text| Token { name: DEFAULT.into(), digest: Digest::of(text.expose_secret().as_bytes()) });
        Self(token.into_iter().collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The caller that a bearer token stands for. All are compared, whichever fits.
    fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let missing = "this needs a token: send `Authorization: Bearer <token>`";
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(given), None) = (given.next(), given.next()) else { return Err(Problem::unauthenticated(missing)) };
        let (scheme, text) = given.as_bytes().split_at(given.len().min(7));
        let text = text.trim_ascii();
        // An empty token is never right, even if somebody configured one.
        if !scheme.eq_ignore_ascii_case(b"bearer ") || text.is_empty() {
            return Err(Problem::unauthenticated(missing));
        }
        let given = Digest::of(text);
        let mut found = None;
        for token in &self.0 {
            if token.digest.matches(&given).into() {
                found = Some(Caller { token: token.name.clone() });
            }
        }
        found.ok_or_else(|| Problem::unauthenticated("this token is not known"))
    }
}

/// The lease API's rule: a token where there are tokens, else no web pages and no foreign names.
pub fn lease_caller(tokens: &Tokens, headers: &HeaderMap, uri: &Uri) -> Result<Caller, Problem> {
    if tokens.is_empty() {
        local_request(headers, uri)?;
        return Ok(Caller { token: DEFAULT.into() });
    }
    tokens.caller(headers)
}

/// The admin endpoint's rule: its token where there is one, else clients of this machine only.
pub fn admin_caller(tokens: &Tokens, headers: &HeaderMap, uri: &Uri, peer: SocketAddr) -> Result<(), Problem> {
    if !tokens.is_empty() {
        return tokens.caller(headers).map(drop);
    }
    if !is_loopback(peer.ip()) {
        let why = "without ADMIN_TOKEN this answers to this machine only: set ADMIN_TOKEN, or ask from here";
        return Err(Problem::new(Code::OutOfScope, why));
    }
    local_request(headers, uri)
}

/// A web page in a browser of this machine reaches loopback too: by a request across origins, or by a name of its own
/// that it lets point to 127.0.0.1. Neither looks like what a crawler sends.
fn local_request(headers: &HeaderMap, uri: &Uri) -> Result<(), Problem> {
    if headers.contains_key(header::ORIGIN) {
        let why = "requests of web pages (with an Origin header) are not served without a token: set one";
        return Err(Problem::new(Code::OutOfScope, why));
    }
    let named = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let mut names = named.chain(uri.authority().map(axum::http::uri::Authority::as_str)).peekable();
    let is_some = names.peek().is_some();
    if is_some && names.all(is_loopback_name) {
        return Ok(());
    }
    let why = "without a token only the names of this machine are served: call localhost or 127.0.0.1, or set a token";
    Err(Problem::new(Code::OutOfScope, why))
}

/// `localhost`, `127.0.0.1`, `[::1]`, each with any port.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// Also `::ffff:127.0.0.1`, as a socket for both families sees it.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Where the lease API may listen: where it was asked to with a token, without one on loopback of the same family.
pub fn bind_address(tokens: &Tokens, wished: SocketAddr) -> SocketAddr {
    if !tokens.is_empty() || is_loopback(wished.ip()) {
        return wished;
    }
    let loopback = match wished {
        // `[::]` takes IPv4 as well, and a person who types 127.0.0.1 shall find us.
        SocketAddr::V6(v6) if !v6.ip().is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        SocketAddr::V6(_) | SocketAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
    };
    SocketAddr::new(loopback, wished.port())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(rows: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn told(result: Result<impl Sized, Problem>) -> &'static str {
        result.map_or_else(|problem| problem.code().as_str(), |_| "ok")
    }

    #[test]
    fn only_the_whole_token_is_right() {
        let tokens = Tokens::one(Some(&"s3cret".into()));
        for (given, verdict) in [
            ("Bearer s3cret", "ok"),
            ("bearer s3cret", "ok"),
            ("BEARER   s3cret", "ok"),
            ("Bearer s3cre", "unauthenticated"),
            ("Bearer s3crets", "unauthenticated"),
            ("Bearer S3cret", "unauthenticated"),
            ("Bearer s3cret s3cret", "unauthenticated"),
            ("Bearer ", "unauthenticated"),
            ("Bearer", "unauthenticated"),
            ("s3cret", "unauthenticated"),
            ("Basic s3cret", "unauthenticated"),
            ("", "unauthenticated"),
        ] {
            let headers = headers(&[(header::AUTHORIZATION, given)]);
            assert_eq!(told(lease_caller(&tokens, &headers, &Uri::from_static("/"))), verdict, "{given:?}");
        }
        assert_eq!(told(lease_caller(&tokens, &HeaderMap::new(), &Uri::from_static("/"))), "unauthenticated");
        let twice = headers(&[(header::AUTHORIZATION, "Bearer s3cret"), (header::AUTHORIZATION, "Bearer x")]);
        assert_eq!(told(lease_caller(&tokens, &twice, &Uri::from_static("/"))), "unauthenticated");
    }

    #[test]
    fn an_empty_token_lets_nobody_in() {
        let tokens = Tokens::one(Some(&"".into()));
        let host = (header::HOST, "localhost");
        for given in ["Bearer ", "Bearer  ", ""] {
            let headers = headers(&[host.clone(), (header::AUTHORIZATION, given)]);
            assert_eq!(told(lease_caller(&tokens, &headers, &Uri::from_static("/"))), "unauthenticated", "{given:?}");
        }
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_served() {
        let none = Tokens::default();
        for (host, verdict) in [
            ("localhost", "ok"),
            ("LocalHost:8090", "ok"),
            ("127.0.0.1:8090", "ok"),
            ("127.1.2.3", "ok"),
            ("[::1]:8090", "ok"),
            ("[::1]", "ok"),
            ("shop.example", "out_of_scope"),
            ("127.0.0.1.shop.example", "out_of_scope"),
            ("localhost.shop.example:8090", "out_of_scope"),
            ("10.0.0.1:8090", "out_of_scope"),
            ("[2001:db8::1]", "out_of_scope"),
            ("[::1", "out_of_scope"),
            ("", "out_of_scope"),
        ] {
            let given = headers(&[(header::HOST, host)]);
            assert_eq!(told(lease_caller(&none, &given, &Uri::from_static("/v1/leases"))), verdict, "{host:?}");
        }
        let local = (header::HOST, "localhost");
        let page = headers(&[local.clone(), (header::ORIGIN, "http://localhost")]);
        let two = headers(&[local.clone(), (header::HOST, "shop.example")]);
        assert_eq!(told(lease_caller(&none, &page, &Uri::from_static("/"))), "out_of_scope");
        assert_eq!(told(lease_caller(&none, &two, &Uri::from_static("/"))), "out_of_scope");
        assert_eq!(told(lease_caller(&none, &HeaderMap::new(), &Uri::from_static("/"))), "out_of_scope");
        let foreign = Uri::from_static("http://shop.example/v1/leases");
        assert_eq!(told(lease_caller(&none, &headers(&[local]), &foreign)), "out_of_scope");
    }

    #[test]
    fn admin_without_a_token_answers_to_this_machine_only() {
        let (none, one) = (Tokens::default(), Tokens::one(Some(&"t".into())));
        let local = headers(&[(header::HOST, "localhost:8080")]);
        let foreign = headers(&[(header::HOST, "operator.example")]);
        let page = headers(&[(header::HOST, "localhost:8080"), (header::ORIGIN, "https://shop.example")]);
        let right = headers(&[(header::HOST, "operator.example"), (header::AUTHORIZATION, "Bearer t")]);
        for (tokens, headers, peer, verdict) in [
            (&none, &local, "127.0.0.1:5", "ok"),
            (&none, &local, "[::1]:5", "ok"),
            (&none, &local, "[::ffff:127.0.0.1]:5", "ok"),
            (&none, &local, "10.0.0.1:5", "out_of_scope"),
            (&none, &local, "[::ffff:10.0.0.1]:5", "out_of_scope"),
            (&none, &foreign, "127.0.0.1:5", "out_of_scope"),
            (&none, &page, "127.0.0.1:5", "out_of_scope"),
            (&none, &right, "10.0.0.1:5", "out_of_scope"),
            (&one, &right, "10.0.0.1:5", "ok"),
            (&one, &local, "127.0.0.1:5", "unauthenticated"),
            (&one, &foreign, "10.0.0.1:5", "unauthenticated"),
        ] {
            let peer = peer.parse().unwrap();
            let told = told(admin_caller(tokens, headers, &Uri::from_static("/admin/actors"), peer));
            assert_eq!(told, verdict, "{tokens:?} {headers:?} {peer}");
        }
    }

    #[test]
    fn without_a_token_the_lease_api_stays_on_loopback() {
        let (none, one) = (Tokens::default(), Tokens::one(Some(&"t".into())));
        for (tokens, wished, address) in [
            (&one, "0.0.0.0:8090", "0.0.0.0:8090"),
            (&none, "0.0.0.0:8090", "127.0.0.1:8090"),
            (&none, "[::]:8090", "127.0.0.1:8090"),
            (&none, "[2001:db8::1]:8090", "[::1]:8090"),
            (&none, "10.0.0.1:0", "127.0.0.1:0"),
            (&none, "[::1]:8090", "[::1]:8090"),
            (&none, "127.0.0.2:1", "127.0.0.2:1"),
        ] {
            assert_eq!(bind_address(tokens, wished.parse().unwrap()), address.parse().unwrap(), "{wished}");
        }
    }

    #[test]
    fn tokens_do_not_show() {
        assert_eq!(format!("{:?}", Tokens::one(Some(&"s3cret".into()))), "[\"default\"]");
    }
}
