//! vendor-data: the script that brings the guest agent, and what the entry adds.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// A script, not cloud-config: the user's `packages:` or `runcmd:` would take the place of ours (fault 54).
const GUEST_AGENT: &str = include_str!("guest-agent.sh");

/// As mail has it.
const LINE: usize = 76;

/// `vendor-data`, or `None` if there is nothing to say. Two parts go into one MIME archive, cloud-init's own form for it.
pub fn vendor_data(install_guest_agent: bool, extra: Option<&str>) -> Option<Vec<u8>> {
    let extra = extra.filter(|extra| !extra.trim().is_empty());
    match (install_guest_agent, extra) {
        (false, None) => None,
        (true, None) => Some(GUEST_AGENT.into()),
        (false, Some(extra)) => Some(extra.into()),
        (true, Some(extra)) => Some(archive(extra).into_bytes()),
    }
}

fn archive(extra: &str) -> String {
    let boundary = boundary(extra);
    let mut archive = String::new();
    let mut line = |parts: &[&str]| {
        archive.extend(parts.iter().copied());
        archive.push('\n');
    };
    line(&["Content-Type: multipart/mixed; boundary=\"", &boundary, "\""]);
    line(&["MIME-Version: 1.0"]);
    line(&[]);
    line(&["--", &boundary]);
    if is_mime(extra) {
        // An archive is a part already: it begins with its own headers, and cloud-init walks into it.
        line(&[extra]);
    } else {
        // cloud-init looks at the first line of plain text to see what it is.
        part(&mut line, "text/plain", "entry-vendor-data", extra);
    }
    line(&["--", &boundary]);
    part(&mut line, "text/x-shellscript", "egress-guest-agent.sh", GUEST_AGENT);
    line(&["--", &boundary, "--"]);
    archive
}

fn part(line: &mut impl FnMut(&[&str]), kind: &str, file: &str, text: &str) {
    line(&["Content-Type: ", kind, "; charset=\"utf-8\""]);
    line(&["MIME-Version: 1.0"]);
    line(&["Content-Transfer-Encoding: base64"]);
    line(&["Content-Disposition: attachment; filename=\"", file, "\""]);
    line(&[]);
    let encoded = STANDARD.encode(text);
    for start in (0..encoded.len()).step_by(LINE) {
        line(&[&encoded[start..encoded.len().min(start + LINE)]]);
    }
}

/// cloud-init's test for an archive is how it begins.
fn is_mime(text: &str) -> bool {
    let begins = |header: &str| text.get(..header.len()).is_some_and(|head| head.eq_ignore_ascii_case(header));
    begins("content-type:") || begins("mime-version:")
}

/// Out of the content, so that the same entry gives the same image; made longer until the content does not hold it.
fn boundary(extra: &str) -> String {
    let hash = Sha256::digest(extra).iter().take(12).map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut boundary = ["===============", &hash, "=="].concat();
    while extra.contains(&boundary) {
        boundary.push('=');
    }
    boundary
}
