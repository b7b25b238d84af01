//! The custom resource definitions as files of `config/crd`, from the types beside this.
//!
//! `crdgen` writes them and a test compares them; the API server is told nothing else.

use kube::CustomResourceExt as _;
use serde_json::Value;

use super::provider_health::ProviderHealth;
use super::proxy::Proxy;

/// Where they are, from the root of the checkout.
pub const DIRECTORY: &str = "config/crd";

/// The command that writes them again.
pub const COMMAND: &str = "make crds";

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub file: String,
    pub text: String,
}

/// All of them.
pub fn all() -> Vec<Manifest> {
    [Proxy::crd(), ProviderHealth::crd()]
        .into_iter()
        .map(|crd| {
            let (plural, group) = (crd.spec.names.plural.clone(), crd.spec.group.clone());
            let mut value = serde_json::to_value(crd).expect("a definition is plain data");
            without_nullable(&mut value);
            let body = serde_saphyr::to_string(&value).expect("a definition is plain data");
            Manifest {
                file: format!("{group}_{plural}.yaml"),
                text: format!("# Written by `{COMMAND}` from src/crd: do not edit.\n{body}"),
            }
        })
        .collect()
}

/// What may be left out may not be `null` on the server: it then drops a `null` that somebody sends, as if it were not
/// there. Otherwise it would keep it, and a rule would see a field that is set.
fn without_nullable(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, field| !(name == "nullable" && field.is_boolean()));
            fields.values_mut().for_each(without_nullable);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nullable),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_files_in_config_are_what_the_types_say() {
        for manifest in all() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DIRECTORY).join(&manifest.file);
            let there = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(there == manifest.text, "{DIRECTORY}/{} is not what src/crd says: run `{COMMAND}`", manifest.file);
        }
    }

    #[test]
    fn everything_that_people_write_has_a_bound() {
        for manifest in all() {
            let crd: Value = serde_saphyr::from_str(&manifest.text).unwrap();
            let mut open = Vec::new();
            unbounded("", &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &mut open);
            assert!(open.is_empty(), "without a bound in {}: {open:?}", manifest.file);
        }
    }

    fn unbounded(path: &str, schema: &Value, found: &mut Vec<String>) {
        let bound = match schema["type"].as_str() {
            Some("string") => {
                schema["maxLength"].is_u64() || schema["format"] == "date-time" || schema["enum"].is_array()
            }
            Some("array") => schema["maxItems"].is_u64(),
            Some("object") => schema["additionalProperties"].is_null() || schema["maxProperties"].is_u64(),
            _ => true,
        };
        if !bound {
            found.push(path.to_owned());
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            unbounded(&format!("{path}.{name}"), field, found);
        }
        for part in ["items", "additionalProperties"] {
            if schema[part].is_object() {
                unbounded(&format!("{path}[]"), &schema[part], found);
            }
        }
    }
}
