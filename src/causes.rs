//! The words of an error with those of its causes. The outermost alone says too little: "error sending request" tells
//! nobody that the connection was refused.

use std::error::Error;

/// Each cause once, outermost first.
pub(crate) fn told(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !told.contains(&words) {
            told = format!("{told}: {words}");
        }
        next = cause.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Link(&'static str, #[source] Option<Box<Link>>);

    #[test]
    fn each_cause_is_told_once() {
        let root = Link("connection refused", None);
        let middle = Link("connect: connection refused", Some(Box::new(root)));
        assert_eq!(
            told(&Link("error sending request", Some(Box::new(middle)))),
            "error sending request: connect: connection refused"
        );
    }
}
