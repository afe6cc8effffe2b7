//! Native sidecar or classic container.

use crate::names::annotation;
use crate::warning::Warning;
use remora_pod::view;
use serde_json::Value;

/// The oldest kubelet minor version (of 1.x) on which native sidecars are used.
pub const NATIVE_SINCE: u32 = 33;

/// Whether this pod gets a native sidecar.
///
/// istio: the template takes any text but `false` as yes, the step that moves overrides only `true`. One meaning
/// here: `true` and `false`, anything else is a warning and the installation's setting.
pub(crate) fn of_pod(pod: &Value, default: bool, warnings: &mut Vec<Warning>) -> bool {
    match view::annotation(pod, annotation::NATIVE) {
        Some("true") => true,
        Some("false") => false,
        None | Some("") => default,
        Some(other) => {
            let text = format!(
                "annotation {}: {other:?} is neither \"true\" nor \"false\"",
                annotation::NATIVE
            );
            warnings.push(Warning::pod("bad-native-value", text));
            default
        }
    }
}

/// Whether every one of these kubelets runs native sidecars well. No kubelet at all counts as yes.
pub fn supported_by<'a>(kubelets: impl IntoIterator<Item = &'a str>) -> bool {
    kubelets
        .into_iter()
        .all(|version| minor(version).is_some_and(|minor| minor >= NATIVE_SINCE))
}

/// The minor version of a kubelet; versions above 1.x count as newest.
pub fn minor(version: &str) -> Option<u32> {
    let version = version.trim().trim_start_matches('v');
    let (major, rest) = version.split_once('.')?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    match major.parse::<u32>().ok()? {
        0 => None,
        1 => digits.parse().ok(),
        _ => Some(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::{minor, supported_by};

    #[test]
    fn one_old_kubelet_decides() {
        assert!(supported_by(["v1.33.0", "1.34.0-eks-1"]));
        assert!(!supported_by(["1.33.0", "1.28.9"]));
        assert!(!supported_by([""]));
        assert!(supported_by([]));
    }

    #[test]
    fn versions() {
        assert_eq!(minor("v1.33.2+k3s1"), Some(33));
        assert_eq!(minor("1.32+"), Some(32));
        assert_eq!(minor("1"), None);
        assert_eq!(minor("2.0"), Some(u32::MAX));
    }
}
