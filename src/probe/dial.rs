//! A TCP connection to one of some addresses. The caller holds the deadline.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use tokio::net::TcpStream;

/// The next address is tried beside the ones that have not answered for this long (RFC 8305).
const STAGGER: Duration = Duration::from_millis(250);
/// Addresses tried; a name with dozens must not make a probe open dozens of connections.
const TRIED: usize = 4;

/// The first connection that comes about. The error is that of the first address that failed.
pub(super) async fn dial(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let stream = match addresses {
        [ip] => TcpStream::connect(SocketAddr::new(*ip, port)).await?,
        several => race(&spread(several), port).await?,
    };
    // The last flight of a TLS handshake and the request behind it are two writes.
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn race(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut waiting = addresses.iter();
    let mut trying = FuturesUnordered::new();
    let mut failure = None;
    loop {
        if let Some(ip) = waiting.next() {
            trying.push(TcpStream::connect(SocketAddr::new(*ip, port)));
        } else if trying.is_empty() {
            return Err(failure.unwrap_or_else(|| io::Error::other("no address to connect to")));
        }
        tokio::select! {
            Some(tried) = trying.next() => match tried {
                Ok(stream) => return Ok(stream),
                Err(error) => _ = failure.get_or_insert(error),
            },
            () = tokio::time::sleep(STAGGER), if waiting.len() > 0 => {}
        }
    }
}

/// The addresses to try, the families by turns, so that one that leads nowhere takes half of the tries at most.
fn spread(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut first = addresses.iter().filter(|ip| ip.is_ipv4());
    let mut other = addresses.iter().filter(|ip| ip.is_ipv6());
    let mut spread = Vec::with_capacity(TRIED);
    while spread.len() < TRIED {
        let before = spread.len();
        spread.extend(first.next());
        spread.extend(other.next());
        if spread.len() == before {
            break;
        }
    }
    spread.truncate(TRIED);
    spread
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_and_the_tries_are_bounded() {
        let v4 = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"];
        assert_eq!(spread(&ips(&v4)), ips(&v4[..4]));
        let both = ips(&["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "2001:db8::1"]);
        assert_eq!(spread(&both), ips(&["192.0.2.1", "2001:db8::1", "192.0.2.2", "192.0.2.3"]));
        assert_eq!(spread(&[]), ips(&[]));
    }

    #[tokio::test]
    async fn an_address_that_refuses_gives_way_to_the_next() {
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = dial(&ips(&["127.0.0.1", "127.0.0.2"]), port).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap().ip(), ips(&["127.0.0.2"])[0]);
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn when_all_addresses_fail_the_first_failure_is_told() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let error = dial(&ips(&["127.0.0.1", "127.0.0.2"]), port).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        assert!(dial(&[], port).await.is_err());
    }
}
