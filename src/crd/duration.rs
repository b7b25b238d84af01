//! Durations as Kubernetes users write them: `30s`, `5m`, `1h30m`, `500ms`.
//!
//! A small part of Go's syntax: whole numbers, the units h, m, s and ms. The crates at hand read more (`1 hour`, `PT1H`,
//! months), and what is accepted here must be what the pattern of the CRD's schema accepts.

use std::time::Duration;

/// What a duration has to look like; ends every message about one.
pub const SHAPE: &str = "write it like `30s`, `5m` or `1h30m`";

/// Longer text is no duration that anybody wrote by hand.
const LENGTH_MAX: usize = 32;

/// The longest that Go, and so the API server, reads: 292 years.
const MILLISECONDS_MAX: u64 = (i64::MAX / 1_000_000) as u64;

/// Reads a duration; `None` if the text is not one, or is longer than anybody means.
pub fn parse(text: &str) -> Option<Duration> {
    if text.is_empty() || text.len() > LENGTH_MAX {
        return None;
    }
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let milliseconds = match &rest[..letters] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        rest = &rest[letters..];
        total = total.checked_add(number.checked_mul(milliseconds)?)?;
    }
    (total <= MILLISECONDS_MAX).then(|| Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn go_style_durations_are_read() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1h0m1s", 3_601_000),
            ("500ms", 500),
            ("1s500ms", 1_500),
            ("0s", 0),
            ("90m", 5_400_000),
            ("2562047h", 9_223_369_200_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "30",
            "s",
            "-5s",
            "+5s",
            "1.5h",
            "5 m",
            " 5m",
            "5m ",
            "1d",
            "5M",
            "1h30",
            "PT5M",
            "5µs",
            "٣s",
            "5m\n",
            "99999999999999999999h",
            "18446744073709551615h",
            "2562048h",
            "1ms1s1m1h1ms1s1m1h1ms1s1m1h1ms1s1m1h",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_written_in_seconds_reads_back(seconds in 0_u64..1_000_000_000) {
            prop_assert_eq!(parse(&format!("{seconds}s")), Some(Duration::from_secs(seconds)));
        }
    }
}
