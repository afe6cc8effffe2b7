//! Image references of the mesh containers.

use crate::names::annotation;
use crate::settings::Settings;
use remora_pod::view;
use serde_json::Value;

/// The reference of a mesh image.
///
/// `base` is the configured name; `config_type` the image type of the ProxyConfig (the proxy's image only).
/// istio: an annotation with a slash is used as it is, for both containers; without one it changes nothing.
pub(crate) fn reference(settings: &Settings, pod: &Value, base: &str, config_type: Option<&str>) -> String {
    let wanted = view::annotation(pod, annotation::PROXY_IMAGE).unwrap_or(base);
    if wanted.contains('/') {
        return wanted.to_owned();
    }
    if base.contains('/') {
        return base.to_owned();
    }
    let variant = settings.values.text(&["global", "variant"]);
    let image_type = view::annotation(pod, annotation::PROXY_IMAGE_TYPE)
        .filter(|t| !t.is_empty())
        .or(config_type)
        .unwrap_or(&variant);
    let name = if base.is_empty() { "proxyv2" } else { base };
    let hub = settings.values.text(&["global", "hub"]);
    format!(
        "{hub}/{name}:{}",
        tag(&settings.values.text(&["global", "tag"]), image_type)
    )
}

fn tag(tag: &str, image_type: &str) -> String {
    if image_type.is_empty() {
        return tag.to_owned();
    }
    let stem = tag
        .strip_suffix("-distroless")
        .or_else(|| tag.strip_suffix("-debug"))
        .unwrap_or(tag);
    if image_type == "default" {
        stem.to_owned()
    } else {
        format!("{stem}-{image_type}")
    }
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn a_type_replaces_the_suffix_of_the_tag() {
        assert_eq!(tag("1.12", ""), "1.12");
        assert_eq!(tag("1.12", "distroless"), "1.12-distroless");
        assert_eq!(tag("1.12-debug", "distroless"), "1.12-distroless");
        assert_eq!(tag("1.12-distroless", "default"), "1.12");
        assert_eq!(tag("1.12-odd-tag", "default"), "1.12-odd-tag");
        assert_eq!(tag("1.12-distroless", ""), "1.12-distroless");
    }
}
