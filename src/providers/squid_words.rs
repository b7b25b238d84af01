//! What Squid says about its own end, out of its log.
//!
//! Pure. Never lets more than a line through.

/// Squid's own words about its end: the last line that tells of one, without the time stamp.
pub fn words_of_squid(log: &str) -> Option<String> {
    /// Longer lines are cut: one sentence fits.
    const LONGEST: usize = 300;
    let telling = ["FATAL", "Bungled", "ERROR", "unrecognized", "error while loading", "not found"];
    let line = telling.iter().find_map(|word| log.lines().rev().find(|line| line.contains(word)))?;
    let said = match line.split_once("| ") {
        Some((stamp, said)) if stamp.starts_with(|c: char| c.is_ascii_digit()) => said,
        _ => line,
    };
    Some(said.trim().chars().filter(|c| !c.is_control()).take(LONGEST).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_the_line_that_tells_why() {
        let check = |log: &str, words: Option<&str>| assert_eq!(words_of_squid(log).as_deref(), words, "{log}");
        check("", None);
        check("2026/12/02 01:19:07| Finished loading MIME types and icons.\n", None);
        check(
            "2026/12/02 01:19:36| aclParseIpData: unknown netmask\n2026/12/02 01:19:36| FATAL: Bungled b.conf line 22: acl\n\
             2026/12/02 01:19:36| Squid Cache: Terminated abnormally.\nCPU Usage: 0.006\n",
            Some("FATAL: Bungled b.conf line 22: acl"),
        );
        check("FATAL: cannot open\n", Some("FATAL: cannot open"));
        check("2026/12/02 01:19:36| b.conf(22): unrecognized: 'bogus'", Some("b.conf(22): unrecognized: 'bogus'"));
    }

    #[test]
    fn the_words_are_bounded() {
        let words = words_of_squid(&format!("FATAL: {}", "x".repeat(100_000))).expect("a telling line");
        assert_eq!(words.len(), 300);
    }
}
