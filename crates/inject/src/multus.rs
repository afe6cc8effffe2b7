//! The network list of a pod under Multus.

use serde_json::Value;

/// The list with one more network; unchanged where the network is already in it.
///
/// istio: a flat list gets `, name`; a JSON list gets an object before its last bracket, so that the user's own
/// notation stays. A list that cannot be parsed is not changed.
pub(crate) fn with_network(list: &str, network: &str) -> String {
    let trimmed = list.trim();
    if trimmed.is_empty() {
        return network.to_owned();
    }
    if trimmed.starts_with('[') {
        return with_network_json(trimmed, network).unwrap_or_else(|| list.to_owned());
    }
    if trimmed.split(',').any(|item| item.trim() == network) {
        return list.to_owned();
    }
    format!("{list}, {network}")
}

fn with_network_json(list: &str, network: &str) -> Option<String> {
    let items: Vec<Value> = serde_json::from_str(list).ok()?;
    if items.iter().any(|item| names(item, network)) {
        return Some(list.to_owned());
    }
    let (head, _) = list.rsplit_once(']')?;
    let object = match network.split_once('/') {
        Some((namespace, name)) => format!("{{\"name\": \"{name}\", \"namespace\": \"{namespace}\"}}"),
        None => format!("{{\"name\": \"{network}\"}}"),
    };
    let comma = if items.is_empty() { "" } else { ", " };
    Some(format!("{head}{comma}{object}]"))
}

fn names(item: &Value, network: &str) -> bool {
    let text = |key: &str| item.get(key).and_then(Value::as_str);
    let (namespace, name) = match network.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, network),
    };
    text("name") == Some(name) && text("namespace") == namespace
}

#[cfg(test)]
mod tests {
    use super::with_network;

    #[test]
    fn lists_are_extended_in_their_own_form() {
        let cases = [
            ("", "istio-cni"),
            ("macvlan-1", "macvlan-1, istio-cni"),
            ("a, istio-cni", "a, istio-cni"),
            (
                "[{\"name\": \"a\"}]",
                "[{\"name\": \"a\"}, {\"name\": \"istio-cni\"}]",
            ),
            ("[]", "[{\"name\": \"istio-cni\"}]"),
            ("[{\"name\": \"istio-cni\"}]", "[{\"name\": \"istio-cni\"}]"),
            ("[broken", "[broken"),
        ];
        for (given, wanted) in cases {
            assert_eq!(with_network(given, "istio-cni"), wanted, "{given:?}");
        }
    }
}
