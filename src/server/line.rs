//! The one-line form of an ask: a query such as `tier=dc&target=shop.example&ttl=60`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::str::FromStr;

use super::dto::GrantRequest;
use super::error::BadField;

/// Keys with a meaning of their own: all others are attributes, and no Proxy has one of these as attribute.
pub(super) const RESERVED: [&str; 7] = ["target", "ttl", "session", "count", "partial", "owner", "exclude"];

/// Reads a query. `exclude` may come several times or with commas; everything else once.
pub(super) fn read(query: &str) -> Result<GrantRequest, BadField> {
    let mut request = GrantRequest::default();
    let mut selector = BTreeMap::new();
    for (key, value) in pairs(query)? {
        match key.as_str() {
            "target" => once(&mut request.target, &key, value)?,
            "session" => once(&mut request.session, &key, value)?,
            "owner" => once(&mut request.owner, &key, value)?,
            "ttl" => once(&mut request.ttl_seconds, &key, number(&key, &value, "must be a whole number of seconds")?)?,
            "count" => once(&mut request.count, &key, number(&key, &value, "must be a whole number")?)?,
            "partial" => request.partial = number(&key, &value, "must be true or false")?,
            "exclude" => request.exclude.extend(value.split(',').map(|name| name.trim().to_owned())),
            _ => match selector.entry(key) {
                Entry::Vacant(free) => drop(free.insert(value)),
                Entry::Occupied(taken) => return Err(twice(taken.key())),
            },
        }
    }
    if !selector.is_empty() {
        request.selectors.push(selector);
    }
    Ok(request)
}

/// The decoded pairs of a query, all of them text that a person can read.
pub(super) fn pairs(query: &str) -> Result<Vec<(String, String)>, BadField> {
    let mut pairs = Vec::new();
    for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
        // What is not UTF-8 was decoded to the replacement character.
        let is_broken = |text: &str| text.chars().any(|c| c.is_control() || c == char::REPLACEMENT_CHARACTER);
        if key.is_empty() || is_broken(&key) {
            return Err(BadField::new("query", key, "as a key, must be readable text in UTF-8"));
        }
        if is_broken(&value) {
            return Err(BadField::new(key, value, "must be UTF-8 without control characters"));
        }
        pairs.push((key.into_owned(), value.into_owned()));
    }
    Ok(pairs)
}

fn once<T>(place: &mut Option<T>, key: &str, value: T) -> Result<(), BadField> {
    if place.is_some() {
        return Err(twice(key));
    }
    *place = Some(value);
    Ok(())
}

fn twice(key: &str) -> BadField {
    BadField::bare(key, "given twice, must be given once")
}

fn number<T: FromStr>(key: &str, value: &str, why: &str) -> Result<T, BadField> {
    value.parse().map_err(|_| BadField::new(key, value, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_parameter_is_an_attribute() {
        let read =
            read("tier=dc&ttl=60&region=eu%2Fwest&exclude=crawl/a,crawl/b&exclude=crawl%2Fc&partial=true").unwrap();
        let attributes = [("region", "eu/west"), ("tier", "dc")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let expected = GrantRequest {
            selectors: vec![attributes.into()],
            ttl_seconds: Some(60),
            partial: true,
            exclude: ["crawl/a", "crawl/b", "crawl/c"].map(str::to_owned).to_vec(),
            ..GrantRequest::default()
        };
        assert_eq!(read, expected);
        assert_eq!(super::read("ttl=5").unwrap().selectors, Vec::<BTreeMap<_, _>>::new());
    }
}
