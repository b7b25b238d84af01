//! The other processes of the benchmark: a real Squid, and the target in a child that runs this same program.
//!
//! Children end with this process: the target ends when its stdin does, Squid is killed by its owner's drop.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;

use egress_operator::echo;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::measure::Trouble;
use crate::squid::Squid;
use crate::{ROLE, memory};

/// The proxy and its target.
pub struct Lab {
    pub squid: Squid,
    pub target: Target,
    pub tls_target: Target,
}

impl Lab {
    pub fn start() -> Result<Self, Trouble> {
        let (target, tls_target) = (Target::start("echo")?, Target::start("tls-echo")?);
        let squid = Squid::start(&[target.port, tls_target.port])?;
        Ok(Self { squid, target, tls_target })
    }
}

/// Our echo, in a process of its own.
pub struct Target {
    pub port: u16,
    /// The certificate that it shows, of a TLS one.
    pub certificate: Option<CertificateDer<'static>>,
    child: Child,
}

impl Drop for Target {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Target {
    fn start(role: &str) -> Result<Self, Trouble> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("the target has no stdout")?).lines();
        let port = lines.next().ok_or("the target did not start")??.parse()?;
        let certificate = match lines.next().ok_or("the target did not start")??.as_str() {
            "" => None,
            hex => Some(CertificateDer::from(from_hex(hex)?)),
        };
        Ok(Self { port, certificate, child })
    }
}

fn from_hex(text: &str) -> Result<Vec<u8>, Trouble> {
    (0..text.len() / 2).map(|at| Ok(u8::from_str_radix(&text[at * 2..at * 2 + 2], 16)?)).collect()
}

// --- in the child

/// What a child does that was started in a role.
pub fn play(role: &str) -> ExitCode {
    let played = match role {
        "echo" => serve(None),
        "tls-echo" => identity().and_then(|(acceptor, certificate)| serve(Some((acceptor, certificate)))),
        other => memory::weigh(other),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_reads = writeln!(std::io::stderr(), "{role}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(tls: Option<(TlsAcceptor, Vec<u8>)>) -> Result<(), Trouble> {
    // One thread, as the cores are few and this one only answers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let mut out = std::io::stdout();
        let hex: String =
            tls.iter().flat_map(|(_, certificate)| certificate).map(|byte| format!("{byte:02x}")).collect();
        writeln!(out, "{}\n{hex}", listener.local_addr()?.port())?;
        std::thread::spawn(|| {
            let _ended = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
        match tls {
            None => echo::serve(listener, std::future::pending()).await,
            Some((acceptor, _)) => loop {
                let (stream, _) = listener.accept().await?;
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await?;
                    let mut head = [0; 2048];
                    let _asked = stream.read(&mut head).await?;
                    stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").await?;
                    stream.shutdown().await
                });
            },
        }
        Ok(())
    })
}

/// A certificate that is its own authority, for the address of the target.
fn identity() -> Result<(TlsAcceptor, Vec<u8>), Trouble> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let certificate = made.cert.der().to_vec();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}
