//! What the path of a webhook's address says about the pods it injects.
//!
//! istio: `/inject/cluster/NAME/net/NAME/KEY/VALUE…`, and the older `/inject/:ENV:KEY=VALUE:ENV:KEY=VALUE`.

use std::collections::BTreeMap;

const OLD: &str = ":ENV:";
/// Stands for a slash in a value.
const SLASH: &str = "--slash--";

/// Variables for the sidecar's environment.
pub fn of_path(path: &str) -> BTreeMap<String, String> {
    let Some(rest) = path.strip_prefix("/inject/") else {
        return BTreeMap::new();
    };
    if rest.starts_with(OLD) {
        let pairs = rest.split(OLD).filter_map(|pair| pair.split_once('='));
        return pairs.filter_map(|(key, value)| named(key, value)).collect();
    }
    let words: Vec<&str> = rest.split('/').collect();
    let (pairs, _) = words.as_chunks::<2>();
    pairs
        .iter()
        .filter_map(|[key, value]| named(key, value))
        .collect()
}

fn named(key: &str, value: &str) -> Option<(String, String)> {
    if key.is_empty() || value.is_empty() {
        return None;
    }
    let name = match key {
        "cluster" => "ISTIO_META_CLUSTER_ID".to_owned(),
        "net" => "ISTIO_META_NETWORK".to_owned(),
        other => other.to_ascii_uppercase(),
    };
    Some((name, value.replace(SLASH, "/")))
}

#[cfg(test)]
mod tests {
    use super::of_path;

    fn of(path: &str) -> Vec<String> {
        of_path(path)
            .into_iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect()
    }

    #[test]
    fn pairs_of_words_are_variables() {
        assert_eq!(of("/inject"), Vec::<String>::new());
        assert_eq!(of("/inject/"), Vec::<String>::new());
        assert_eq!(of("/inject/cluster"), Vec::<String>::new());
        assert_eq!(
            of("/inject/cluster/c--slash--1/net/n/zone/z/left"),
            ["ISTIO_META_CLUSTER_ID=c/1", "ISTIO_META_NETWORK=n", "ZONE=z"]
        );
    }

    #[test]
    fn the_older_form_keeps_slashes() {
        assert_eq!(
            of("/inject/:ENV:cluster=c:ENV:root=/a/b:ENV:=x:ENV:="),
            ["ISTIO_META_CLUSTER_ID=c", "ROOT=/a/b"]
        );
    }
}
