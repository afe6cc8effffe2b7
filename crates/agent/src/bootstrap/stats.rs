//! Which statistics exist, and which parts of their names become labels.
//!
//! Envoy's memory grows with every statistic of every cluster, so only those are kept that readiness, dashboards of
//! a mesh, or the user's annotations ask for.

use super::Description;
use serde_json::{Value, json};

/// Label, and how to find it: the first group leaves the name, the second is the value. A name may end with `;`, so
/// that dots in it do not end it.
const TAGS: &[(&str, &str)] = &[
    (
        "cluster_name",
        r"^cluster\.(((?:[^;]+(?=;)|.+?\.svc\.cluster\.local(?=\.)|[^.]+));?\.)",
    ),
    ("tcp_prefix", r"^tcp\.(((?:[^;]+(?=;)|.*?));?\.)\w+?$"),
    ("response_code", r"_rq(_(\d{3}))$"),
    ("response_code_class", r"_rq(_(\dxx))$"),
    (
        "http_conn_manager_listener_prefix",
        r"^listener(?=\.).*?\.http\.(((?:[^;]+(?=;)|[_.\d]+|[_\[\]a-fA-F\d]+));?\.)",
    ),
    (
        "http_conn_manager_prefix",
        r"^http\.(((?:[^;]+(?=;)|[_.\d]+|[_\[\]a-fA-F\d]+));?\.)",
    ),
    (
        "listener_address",
        r"^listener\.(((?:[^;]+(?=;)|[_.\d]+|[_\[\]a-fA-F\d]+));?\.)",
    ),
    (
        "mongo_prefix",
        r"^mongo\.((.+?)\.)(?:collection|cmd|cx_|op_|delays_|decoding_)",
    ),
    ("cache", r"(cache\.(.+?)\.)"),
    ("component", r"(component\.(.+?)\.)"),
    ("tag", r"(tag\.(.+?);\.)"),
    ("wasm_filter", r"(wasm_filter\.(.+?)\.)"),
    ("authz_enforce_result", r"rbac(\.(allowed|denied))"),
    ("authz_dry_run_action", r"(\.istio_dry_run_(allow|deny)_)"),
    ("authz_dry_run_result", r"(\.shadow_(allowed|denied))"),
];

// istio: the statistics that a sidecar keeps by default.
const PREFIXES: &[&str] = &[
    "cluster_manager",
    "listener_manager",
    "server",
    "cluster.xds-grpc",
    "wasm",
];
const SUFFIXES: &[&str] = &["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"];
const PATTERN: &str = r"vhost\..*\.route\..*";

// istio: annotations that add to it.
const MORE_PREFIXES: &str = "sidecar.istio.io/statsInclusionPrefixes";
const MORE_SUFFIXES: &str = "sidecar.istio.io/statsInclusionSuffixes";
const MORE_PATTERNS: &str = "sidecar.istio.io/statsInclusionRegexps";
const MORE_TAGS: &str = "sidecar.istio.io/extraStatTags";

pub(super) fn config(description: &Description) -> Value {
    let named = TAGS
        .iter()
        .map(|(name, regex)| json!({"tag_name": name, "regex": regex}));
    let extra = extra_tags(description)
        .into_iter()
        .map(|name| json!({"tag_name": name, "regex": format!(r"({name}=\.=(.*?);\.;)")}));
    json!({
        "use_all_default_tags": false,
        "stats_tags": named.chain(extra).collect::<Vec<_>>(),
        "stats_matcher": {"inclusion_list": {"patterns": patterns(description)}},
    })
}

/// Extra labels configured by name. Names with other characters are dropped, because the name becomes part of a regex.
fn extra_tags(description: &Description) -> Vec<String> {
    let configured = strings(description.config(&["extraStatTags"]));
    let mut names: Vec<String> = configured
        .into_iter()
        .chain(annotated(description, MORE_TAGS))
        .filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        .collect();
    names.sort();
    names.dedup();
    names
}

fn patterns(description: &Description) -> Vec<Value> {
    let wanted = |field: &str, annotation: &str| {
        let mut list = strings(description.config(&["proxyStatsMatcher", field]));
        list.extend(annotated(description, annotation));
        list
    };
    let mut found = vec![json!({"prefix": "reporter="})];
    found.extend(PREFIXES.iter().map(|text| json!({"prefix": text})));
    let prefixes = wanted("inclusionPrefixes", MORE_PREFIXES);
    found.extend(prefixes.iter().map(|text| json!({"prefix": text})));
    found.extend(SUFFIXES.iter().map(|text| json!({"suffix": text})));
    // differs from istio: there only with EXIT_ON_ZERO_ACTIVE_CONNECTIONS; here the stop always looks at it.
    found.push(json!({"suffix": "downstream_cx_active"}));
    let suffixes = wanted("inclusionSuffixes", MORE_SUFFIXES);
    found.extend(suffixes.iter().map(|text| json!({"suffix": text})));
    let expressions = wanted("inclusionRegexps", MORE_PATTERNS);
    let expressions = std::iter::once(PATTERN).chain(expressions.iter().map(String::as_str));
    found.extend(expressions.map(|text| json!({"safe_regex": {"regex": text}})));
    found.extend(["component", "istio"].map(|text| json!({"prefix": text})));
    found
}

fn annotated(description: &Description, name: &str) -> Vec<String> {
    let list = description.pod_text("ANNOTATIONS", name);
    let parts = list.unwrap_or_default().split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}
