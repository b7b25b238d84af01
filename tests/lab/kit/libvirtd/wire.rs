//! How libvirt's messages look on a socket: a length, six numbers, and XDR (`virnetprotocol.x`).

use std::io::{self, Read, Write};

/// `REMOTE_PROGRAM`, in its version 1.
pub(super) const PROGRAM: u32 = 0x2000_8086;

/// Of `virNetMessageType`.
pub(super) const CALL: u32 = 0;
pub(super) const REPLY: u32 = 1;
pub(super) const STREAM: u32 = 3;

/// Of `virNetMessageStatus`.
pub(super) const OK: u32 = 0;
pub(super) const ERROR: u32 = 1;
pub(super) const CONTINUE: u32 = 2;

/// The longest message: what libvirt itself takes.
const LONGEST: u32 = 16 * 1024 * 1024;
/// Length and header.
const HEAD: u32 = 28;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) program: u32,
    pub(super) procedure: u32,
    pub(super) kind: u32,
    pub(super) serial: u32,
    pub(super) status: u32,
    pub(super) body: Vec<u8>,
}

impl Message {
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; HEAD as usize];
        from.read_exact(&mut head)?;
        let mut head = Reader(&head);
        let [length, program, _version, procedure, kind, serial, status] = std::array::from_fn(|_| head.int());
        if !(HEAD..=LONGEST).contains(&length) {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let mut body = vec![0; (length - HEAD) as usize];
        from.read_exact(&mut body)?;
        Ok(Self { program, procedure, kind, serial, status, body })
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let length = HEAD + u32::try_from(self.body.len()).map_err(io::Error::other)?;
        let mut out = Writer::default();
        for number in [length, self.program, 1, self.procedure, self.kind, self.serial, self.status] {
            out.int(number);
        }
        out.0.extend_from_slice(&self.body);
        to.write_all(&out.0)
    }

    /// The same call's, in another kind.
    pub(super) fn answer(&self, kind: u32, status: u32, body: Vec<u8>) -> Self {
        Self { kind, status, body, ..*self }
    }
}

/// Reads what a client sends. What is not there reads as nothing: the client is libvirt's own library.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(super) fn int(&mut self) -> u32 {
        self.take(4).try_into().map_or(0, u32::from_be_bytes)
    }

    pub(super) fn hyper(&mut self) -> u64 {
        self.take(8).try_into().map_or(0, u64::from_be_bytes)
    }

    pub(super) fn text(&mut self) -> String {
        let length = self.int() as usize;
        let text = String::from_utf8_lossy(self.take(length)).into_owned();
        self.take(length.wrapping_neg() % 4);
        text
    }

    pub(super) fn uuid(&mut self) -> [u8; 16] {
        self.take(16).try_into().unwrap_or_default()
    }
}

#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn int(&mut self, number: u32) -> &mut Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn hyper(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.int(u32::try_from(text.len()).expect("a short text"));
        self.0.extend_from_slice(text.as_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// A pointer that may be null.
    pub(super) fn option(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.int(1).text(text),
            None => self.int(0),
        }
    }

    pub(super) fn uuid(&mut self, uuid: [u8; 16]) -> &mut Self {
        self.0.extend_from_slice(&uuid);
        self
    }

    pub(super) fn done(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}
