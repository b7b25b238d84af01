//! What a client sends and would like to get: media types, and nothing more of HTTP's negotiation than we need.

use axum::http::{HeaderMap, header};

/// What an answer looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    /// For shells: one thing a line.
    Text,
}

/// What the `Accept` header prefers; JSON unless plain text is wanted more.
pub(super) fn preferred(headers: &HeaderMap) -> Form {
    let accepted: Vec<&str> = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|v| v.split(','))
        .collect();
    if weight(&accepted, "text", "plain") > weight(&accepted, "application", "json") { Form::Text } else { Form::Json }
}

/// The quality that a type has (in thousandths) and how exactly it was named, as more exact names win at par.
fn weight(accepted: &[&str], family: &str, kind: &str) -> (u16, u8) {
    let mut best = (0, 0);
    for range in accepted {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let exactness = match name.split_once('/') {
            Some((f, k)) if f == family && k == kind => 3,
            Some((f, "*")) if f == family => 2,
            Some(("*", "*")) => 1,
            _ => continue,
        };
        let quality = parts
            .filter_map(|parameter| parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q=")))
            .find_map(|q| q.trim().parse::<f32>().ok())
            .map_or(1.0, |q| q.clamp(0.0, 1.0));
        if exactness > best.1 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
            let thousandths = (quality * 1000.0) as u16;
            best = (thousandths, exactness);
        }
    }
    best
}

/// True if the body is said to be JSON in UTF-8.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(given)) = headers.get(header::CONTENT_TYPE).map(|value| value.to_str()) else { return false };
    let mut parts = given.split(';').map(|part| part.trim().to_ascii_lowercase());
    parts.next().as_deref() == Some("application/json")
        && parts
            .filter_map(|parameter| parameter.strip_prefix("charset=").map(|set| set.trim_matches('"').to_owned()))
            .all(|set| matches!(set.as_str(), "utf-8" | "utf8" | "us-ascii"))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn text_is_for_those_who_want_it_more_than_json() {
        for (accept, form) in [
            ("", Form::Json),
            ("*/*", Form::Json),
            ("text/plain", Form::Text),
            ("Text/Plain; charset=utf-8", Form::Text),
            ("text/*", Form::Text),
            ("text/plain, */*", Form::Text),
            ("application/json, text/plain, */*", Form::Json),
            ("application/json;q=0.5, text/plain;q=0.6", Form::Text),
            ("text/plain;q=0, */*", Form::Json),
            ("application/problem+json, application/json", Form::Json),
            ("image/png", Form::Json),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(preferred(&headers), form, "{accept:?}");
        }
        assert_eq!(preferred(&HeaderMap::new()), Form::Json);
    }

    #[test]
    fn only_json_in_utf8_is_json() {
        for (given, is) in [
            ("application/json", true),
            ("application/json; charset=utf-8", true),
            ("Application/JSON;charset=\"UTF-8\"", true),
            ("application/json; charset=latin1", false),
            ("application/x-www-form-urlencoded", false),
            ("text/plain", false),
            ("application/jsonx", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(given));
            assert_eq!(is_json(&headers), is, "{given}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
