//! The module's configuration text and the paths it goes to. Every line is checked: a value that could end
//! its line or open another directive stops the injection.

use std::collections::BTreeMap;

use crate::otel::Scene;
use crate::otel::identity::App;
use crate::otel::instrumentation::Section;
use crate::otel::language::Language;
use crate::otel::request::quoted;

const LIBRARIES: &str = "/opt/opentelemetry-webserver/agent/sdk_lib/lib";
const MODULE: &str = "/opt/opentelemetry-webserver/agent/WebServerModule/Apache/libmod_apache_otel";
/// Replaced by the pod's name when the pod starts.
const INSTANCE: &str = "<<SID-PLACEHOLDER>>";

/// Where the server's configuration is.
pub(super) struct Paths {
    /// Its directory.
    pub(super) dir: String,
    /// nginx: the main file in it.
    pub(super) file: String,
}

/// The configured paths, or the servers' usual ones.
pub(super) fn paths(language: Language, section: &Section) -> Result<Paths, String> {
    let usual = if language == Language::Nginx {
        "/etc/nginx/nginx.conf"
    } else {
        "/usr/local/apache2/conf"
    };
    let path = if section.config.is_empty() {
        usual
    } else {
        section.config.as_str()
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._/-".contains(&b);
    let climbs = path.split('/').any(|part| part == "..");
    if path.len() > 256 || !path.starts_with('/') || climbs || !path.bytes().all(plain) {
        return Err(format!(
            "{} is not a usable configuration path; use an absolute one",
            quoted(path)
        ));
    }
    let trimmed = path.trim_end_matches('/');
    let (dir, file) = match (language, trimmed.rsplit_once('/')) {
        (Language::Nginx, Some((dir, file))) => (dir, file),
        _ => (trimmed, ""),
    };
    if dir.is_empty() {
        return Err("the configuration cannot be at the root of the file system".to_owned());
    }
    Ok(Paths {
        dir: dir.to_owned(),
        file: file.to_owned(),
    })
}

/// The configuration text for one container.
pub(super) fn text(
    language: Language,
    scene: &Scene<'_>,
    section: &Section,
    container: &str,
) -> Result<String, String> {
    let mut attributes = defaults(language, scene, container)?;
    for (name, value) in &section.attrs {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        if !name.bytes().all(plain) {
            return Err(format!("attribute name {} is not a directive", quoted(name)));
        }
        if value.contains([';', '{', '}']) || value.chars().any(char::is_control) || value.ends_with('\\') {
            let what = quoted(value);
            return Err(format!(
                "attribute {name} has the value {what}, which does not fit on its line"
            ));
        }
        attributes.insert(name.clone(), value.clone());
    }
    let end = if language == Language::Nginx { ";" } else { "" };
    let lines = attributes
        .iter()
        .map(|(name, value)| format!("{name} {value}{end}\n"));
    let head = if language == Language::Nginx {
        String::new()
    } else {
        apache_head(section)
    };
    Ok(lines.fold(head, |text, line| text + &line))
}

fn defaults(
    language: Language,
    scene: &Scene<'_>,
    container: &str,
) -> Result<BTreeMap<String, String>, String> {
    let nginx = language == Language::Nginx;
    let prefix = if nginx { "NginxModule" } else { "ApacheModule" };
    // operator: two blanks before these values for Apache.
    let on = if nginx { "ON" } else { " ON" };
    let app = App { container, image: "" };
    let service = scene.identity.service_name(scene.instrumentation, app);
    let endpoint = match scene.instrumentation.endpoint.as_str() {
        "" => "http://localhost:4317/",
        endpoint => endpoint,
    };
    one_word("the service name", &service)?;
    one_word("spec.exporter.endpoint", endpoint)?;
    one_word("the namespace", scene.identity.namespace)?;
    let namespace = match scene.identity.namespace {
        "" => language.name(),
        namespace => namespace,
    };
    let values = [
        ("Enabled", "ON"),
        ("OtelSpanExporter", "otlp"),
        ("OtelExporterEndpoint", endpoint),
        ("ServiceName", service.as_str()),
        ("ServiceNamespace", namespace),
        ("ServiceInstanceId", INSTANCE),
        ("ResolveBackends", on),
        ("TraceAsError", on),
    ];
    Ok(values
        .into_iter()
        .map(|(name, value)| (format!("{prefix}{name}"), value.to_owned()))
        .collect())
}

/// Derived values are not quoted in the file.
fn one_word(what: &str, value: &str) -> Result<(), String> {
    let bad = |c: char| c.is_control() || c.is_whitespace() || ";{}\"'\\#$|&<>".contains(c);
    if value.chars().any(bad) {
        return Err(format!(
            "{what} is {}, which cannot stand in a configuration file",
            quoted(value)
        ));
    }
    Ok(())
}

/// The lines that load SDK and module, as the operator writes them.
fn apache_head(section: &Section) -> String {
    let load = |library: &str| format!("LoadFile {LIBRARIES}/libopentelemetry_{library}.so\n");
    let module = |suffix: &str| format!("LoadModule otel_apache_module {MODULE}{suffix}.so\n");
    let mut text = "\n#Load the Otel Webserver SDK\n".to_owned();
    for library in [
        "common",
        "resources",
        "trace",
        "otlp_recordable",
        "exporter_ostream_span",
        "exporter_otlp_grpc",
    ] {
        text.push_str(&load(library));
    }
    text.push_str("#Load the Otel ApacheModule SDK\n");
    text.push_str(&load("webserver_sdk"));
    for (version, suffix) in [("2.4", ""), ("2.2", "22")] {
        let remark = format!("#Load the Apache Module. In this example for Apache {version}\n#");
        text = text + &remark + &module(suffix);
    }
    text.push_str(&module(if section.version == "2.2" { "22" } else { "" }));
    text.push_str("#Attributes\n");
    text
}
