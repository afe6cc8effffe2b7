//! The same objects as a Helm chart.
//!
//! The objects are made once with marks in place of what can be chosen, printed, and the marks exchanged for template
//! expressions. So there is one description of an installation, and a chart rendered with its own values is that
//! installation (without the namespace, which is Helm's to make).

use super::{Options, hooks, mesh_config, objects, pilot, values};
use remora_pod::yaml;
use serde_json::{Value, json};

/// A file of the chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Below the chart's directory.
    pub path: &'static str,
    /// Its content.
    pub text: String,
}

/// What can be chosen: the mark, and the expression it becomes. Longer ones first, where one is part of another.
const MARKS: [(&str, &str); 9] = [
    ("-mark-revision", "$suffix"),
    ("mark-revision", "$revision"),
    ("mark-hub/mark-name:mark-tag", "$image"),
    ("mark-namespace", ".Release.Namespace"),
    ("mark-hub", ".Values.hub"),
    ("mark-name", ".Values.image"),
    ("mark-tag", ".Values.tag"),
    ("mark-trust-domain", ".Values.trustDomain"),
    ("mark-cluster", ".Values.cluster"),
];
/// The revision as it was given, which is empty for the default one.
const GIVEN: &str = "mark-given";
/// In front of what is chosen for the control plane's pods.
const PILOT: &str = "mark-pilot-";
const REPLICAS: u32 = 424_242;
const ONLY_DEFAULT: &str = "mark-only-default";
const END: &str = "mark-end";

const PRELUDE: &str = r#"{{- $revision := "default" }}
{{- $suffix := "" }}
{{- if .Values.revision }}
{{- $revision = .Values.revision }}
{{- $suffix = printf "-%s" .Values.revision }}
{{- end }}
{{- $image := printf "%s:%v" .Values.image .Values.tag }}
{{- if .Values.hub }}
{{- $image = printf "%s/%s" .Values.hub $image }}
{{- end }}
"#;

/// The chart whose own values are these options.
pub fn chart(options: &Options) -> Vec<File> {
    let marked = Options {
        namespace: "mark-namespace".to_owned(),
        revision: "mark-revision".to_owned(),
        image: "mark-hub/mark-name:mark-tag".to_owned(),
        pull_policy: None,
        replicas: REPLICAS,
        trust_domain: "mark-trust-domain".to_owned(),
        cluster: "mark-cluster".to_owned(),
        pilot: marked_pilot(),
        values: json!({}),
        mesh: json!({}),
    };
    let mut rights = Vec::new();
    let mut control = Vec::new();
    for object in objects(&marked) {
        match object["kind"].as_str().unwrap_or_default() {
            "Namespace" | "ConfigMap" | "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => {
            }
            "Deployment" => control.push(deployment(object)),
            "PodDisruptionBudget" => control.push(only_if("gt (int .Values.replicas) 1", &object)),
            "NetworkPolicy" => control.push(only_if(".Values.pilot.networkPolicy.enabled", &object)),
            "ResourceQuota" => control.push(only_if(".Values.pilot.priorityClassName", &object)),
            "Service" => control.push(template(&object)),
            _ => rights.push(template(&object)),
        }
    }
    let hooks: Vec<String> = webhooks(&marked).iter().map(template).collect();
    vec![
        File {
            path: "Chart.yaml",
            text: yaml::write(
                &json!({"apiVersion": "v2", "name": "remora", "type": "application",
                "description": "A mesh whose pods start and stop in the right order",
                "version": env!("CARGO_PKG_VERSION"), "appVersion": env!("CARGO_PKG_VERSION")}),
            ),
        },
        File {
            path: "values.yaml",
            text: own_values(options),
        },
        file("templates/rights.yaml", &rights),
        file("templates/config.yaml", &[config(&marked)]),
        file("templates/control.yaml", &control),
        file("templates/webhooks.yaml", &hooks),
    ]
}

fn only_if(condition: &str, object: &Value) -> String {
    format!("{{{{- if {condition} }}}}\n{}{{{{- end }}}}\n", template(object))
}

/// The choices for the control plane's pods, each in place of its value the mark of where it is found.
fn marked_pilot() -> Value {
    let mut marked = pilot();
    for (key, value) in marked.as_object_mut().into_iter().flatten() {
        match (key.as_str(), value) {
            // Laid over when the chart is rendered.
            ("affinity", _) => {}
            ("networkPolicy", Value::Object(choices)) => {
                for (choice, value) in choices.iter_mut().filter(|(choice, _)| *choice != "enabled") {
                    *value = json!(format!("{PILOT}networkPolicy.{choice}"));
                }
            }
            (key, value) => *value = json!(format!("{PILOT}{key}")),
        }
    }
    marked
}

fn file(path: &'static str, documents: &[String]) -> File {
    File {
        path,
        text: format!("{PRELUDE}{}", documents.join("---\n")),
    }
}

fn own_values(options: &Options) -> String {
    let (hub, image, tag) = super::split(&options.image);
    let own = json!({"hub": hub, "image": image, "tag": tag, "imagePullPolicy": options.pull_policy.clone().unwrap_or_default(),
        "replicas": options.replicas, "revision": options.revision, "trustDomain": options.trust_domain,
        "cluster": options.cluster, "pilot": options.pilot(), "values": options.values, "meshConfig": options.mesh});
    let about = "# Image of the control plane and of the sidecars: [hub/]image:tag.\n\
        # revision: empty for the default one. values: laid over the installation's, as Istio's charts have them.\n\
        # meshConfig: laid over the mesh configuration. pilot: the pods of the control plane; affinity is laid over a\n\
        # preference for nodes of their own.\n";
    format!("{about}{}", yaml::write(&own))
}

/// The webhooks of every revision, and those only the default one has.
fn webhooks(marked: &Options) -> [Value; 2] {
    let default = Options {
        revision: String::new(),
        ..marked.clone()
    };
    let mut all = hooks(marked);
    for (configuration, default) in all.iter_mut().zip(hooks(&default)) {
        let Some(entries) = configuration["webhooks"].as_array_mut() else {
            continue;
        };
        let known = entries.len();
        let more = default["webhooks"]
            .as_array()
            .into_iter()
            .flatten()
            .skip(known)
            .cloned();
        entries.push(json!(ONLY_DEFAULT));
        entries.extend(more);
        entries.push(json!(END));
    }
    all
}

fn deployment(mut object: Value) -> String {
    let container = &mut object["spec"]["template"]["spec"]["containers"][0];
    for variable in container["env"].as_array_mut().into_iter().flatten() {
        if variable["name"] == "REVISION" {
            variable["value"] = json!(GIVEN);
        }
    }
    container["imagePullPolicy"] = json!("mark-pull-policy");
    let affinity = std::mem::replace(
        &mut object["spec"]["template"]["spec"]["affinity"],
        json!("mark-affinity"),
    );
    let merged = format!("mergeOverwrite {} .Values.pilot.affinity", expression(&affinity));
    template(&object).replace("mark-affinity", &format!("{{{{ toJson ({merged}) }}}}"))
}

/// An object as text with expressions.
fn template(object: &Value) -> String {
    let mut text = String::new();
    for line in yaml::write(object).lines() {
        text.push_str(&expressed(line));
        text.push('\n');
    }
    text
}

fn expressed(line: &str) -> String {
    match line.trim_start_matches(['-', ' ']) {
        ONLY_DEFAULT => return "{{- if not .Values.revision }}".to_owned(),
        END => return "{{- end }}".to_owned(),
        _ => {}
    }
    if line.contains("mark-pull-policy") {
        let filled = line.replace("mark-pull-policy", "{{ . }}");
        return format!("{{{{- with .Values.imagePullPolicy }}}}\n{filled}\n{{{{- end }}}}");
    }
    if line.contains(&REPLICAS.to_string()) {
        return line.replace(&REPLICAS.to_string(), "{{ .Values.replicas }}");
    }
    if let Some((key, path)) = line.split_once(PILOT) {
        return format!("{key}{{{{ toJson .Values.pilot.{path} }}}}");
    }
    // The whole value may be anything a person types, so it is quoted.
    for (mark, expression) in MARKS.into_iter().chain([(GIVEN, ".Values.revision")]) {
        if let Some(key) = line.strip_suffix(mark).filter(|key| key.ends_with([' '])) {
            return format!("{key}{{{{ {expression} | quote }}}}");
        }
    }
    MARKS.iter().fold(line.to_owned(), |line, (mark, expression)| {
        line.replace(mark, &format!("{{{{ {expression} }}}}"))
    })
}

/// The config maps: what is chosen is laid over when the chart is rendered.
fn config(marked: &Options) -> String {
    let mut base = values(marked);
    base["revision"] = json!(GIVEN);
    let map = |name: &str, key: &str, variable: &str| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": marked.metadata(&marked.suffixed(name)), "data": {key: "mark-data"}});
        template(&object).replace("mark-data", &format!("{{{{ toJson {variable} | quote }}}}"))
    };
    format!(
        "{{{{- $mesh := mergeOverwrite {} .Values.meshConfig }}}}\n\
         {{{{- $values := {} }}}}\n\
         {{{{- if .Values.imagePullPolicy }}}}\n\
         {{{{- $values = mergeOverwrite $values (dict \"global\" (dict \"imagePullPolicy\" .Values.imagePullPolicy)) }}}}\n\
         {{{{- end }}}}\n\
         {{{{- $values = mergeOverwrite $values .Values.values }}}}\n\
         {}---\n{}",
        expression(&mesh_config(marked)),
        expression(&base),
        map("istio", "mesh", "$mesh"),
        map("istio-sidecar-injector", "values", "$values"),
    )
}

/// A value as an expression that makes it.
fn expression(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let pairs: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{key:?} {}", expression(value)))
                .collect();
            format!("(dict {})", pairs.join(" "))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(expression).collect();
            format!("(list {})", items.join(" "))
        }
        Value::String(text) => sentence(text),
        other => other.to_string(),
    }
}

/// A text as an expression: a literal, a value, or a `printf` of both.
fn sentence(text: &str) -> String {
    if text == GIVEN {
        return ".Values.revision".to_owned();
    }
    if let Some((_, whole)) = MARKS.iter().find(|(mark, _)| *mark == text) {
        return (*whole).to_owned();
    }
    let mut pattern = text.to_owned();
    let mut found = Vec::new();
    for (mark, expression) in MARKS {
        while let Some(at) = pattern.find(mark) {
            pattern.replace_range(at..at + mark.len(), "%v");
            // Marks are found by kind, `printf` takes them by place.
            let before = pattern[..at].matches("%v").count();
            found.insert(before.min(found.len()), expression);
        }
    }
    if found.is_empty() {
        format!("{text:?}")
    } else {
        format!("(printf {pattern:?} {})", found.join(" "))
    }
}
