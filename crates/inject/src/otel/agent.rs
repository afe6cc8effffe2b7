//! Agents that an init container copies into a volume: Java, Node.js, Python, .NET.
//!
//! One copy container and one volume per language serve all its targets. They are added only when at least
//! one container was accepted, and found again by name on a second pass.

use serde_json::{Map, Value, json};

use super::Scene;
use super::env::{self, Held};
use super::identity::App;
use super::instrumentation::Section;
use super::language::Language;
use super::names::{self, AGENT, AGENT_DIR};
use super::pod::{self, Malformed, Place};
use super::sdk;
use super::security;
use super::tls::{self, Certificates};
use crate::warning::Warning;

const PROFILER: &str = "{918728DD-259F-4A6A-AC2B-B85E1B658318}";
const DOTNET_LISTS: [&str; 3] = [
    "DOTNET_STARTUP_HOOKS",
    "DOTNET_ADDITIONAL_DEPS",
    "DOTNET_SHARED_STORE",
];

/// Why a container is left as it was.
pub(crate) enum Refusal {
    Malformed(Malformed),
    /// A variable that must be extended comes from `valueFrom`.
    Indirect(&'static str),
    /// .NET instrumentation by another tool.
    DotNetHome,
    /// Another volume is mounted at the agent's path.
    PathTaken(String),
}

impl From<Malformed> for Refusal {
    fn from(cause: Malformed) -> Self {
        Self::Malformed(cause)
    }
}

impl Refusal {
    pub(crate) fn warning(self, language: Language, container: &str) -> Warning {
        let reason = match self {
            Self::Malformed(Malformed(what)) => format!("{what}; correct the manifest"),
            Self::Indirect(variable) => format!(
                "{variable} comes from valueFrom, in the container or in the Instrumentation, and cannot be \
                 extended; give it a literal value there"
            ),
            Self::DotNetHome => {
                "OTEL_DOTNET_AUTO_HOME is set already; remove it, or the annotation".to_owned()
            }
            Self::PathTaken(path) => format!("something else is mounted at {path}; move that mount"),
        };
        let text = format!("container was not instrumented for {}: {reason}", language.name());
        Warning::container("otel-container-refused", container, text)
    }
}

/// The name of a language's copy container and volume.
pub(crate) fn volume_name(language: Language) -> String {
    format!("{AGENT}-{}", language.name())
}

fn copy_dir(language: Language) -> String {
    format!("{AGENT_DIR}-{}", language.name())
}

/// Java's path differs per container so that processes sharing a file system keep their agents apart.
fn mount_path(language: Language, container: &str) -> String {
    match language {
        Language::Java => format!("{}-{container}", copy_dir(language)),
        _ => copy_dir(language),
    }
}

/// Whether the container has this language's agent.
pub(crate) fn is_present(language: Language, container: &Map<String, Value>) -> bool {
    pod::mounts_volume(container, &volume_name(language))
}

/// The variants an annotation chooses between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Libc {
    Glibc,
    Musl,
}

/// Reads the platform annotation of Python or .NET.
pub(crate) fn libc(language: Language, scene: &Scene<'_>) -> Result<Libc, Warning> {
    let (key, glibc, musl) = match language {
        Language::Python => (names::PYTHON_PLATFORM, "glibc", "musl"),
        Language::DotNet => (names::DOTNET_RUNTIME, "linux-x64", "linux-musl-x64"),
        _ => return Ok(Libc::Glibc),
    };
    match scene.annotations.value(key) {
        "" => Ok(Libc::Glibc),
        value if value == glibc => Ok(Libc::Glibc),
        value if value == musl => Ok(Libc::Musl),
        value => {
            let value = super::request::quoted(value);
            let text = format!(
                "annotation {key} is {value}, so {} was not injected; use {glibc} or {musl}",
                language.name()
            );
            Err(Warning::pod("otel-platform-unknown", text))
        }
    }
}

/// Instruments the targets; returns those that were accepted.
pub(crate) fn inject(
    spec: &mut Map<String, Value>,
    scene: &Scene<'_>,
    language: Language,
    targets: &[Place],
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Place>, Malformed> {
    let libc = match libc(language, scene) {
        Ok(libc) => libc,
        Err(warning) => {
            warnings.push(warning);
            return Ok(Vec::new());
        }
    };
    let section = scene.instrumentation.section(language, scene.operator);
    let certificates = tls::plan(scene.instrumentation, spec);
    let mut accepted = Vec::new();
    for place in targets {
        let dresser = ContainerChange {
            scene,
            language,
            section: &section,
            certificates: &certificates,
            libc,
        };
        match pod::container(spec, place)
            .map_err(Refusal::from)
            .and_then(|c| dresser.instrument_container(c, &place.name))
        {
            Ok((container, remark)) => {
                pod::put_container(spec, place, container);
                warnings.extend(remark);
                accepted.push(place.clone());
            }
            Err(refusal) => warnings.push(refusal.warning(language, &place.name)),
        }
    }
    if let Some(first) = accepted.first() {
        tls::add_volumes(&certificates, spec)?;
        pod::add_volume(spec, volume(&volume_name(language), &section))?;
        if pod::find(spec, true, &volume_name(language)).is_none() {
            warnings.extend(security::obstacle(spec, scene, first, &section.image));
        }
        add_copies(spec, scene, language, &section, first, libc)?;
    }
    Ok(accepted)
}

/// The agent's volume: a claim if one is given, else an empty directory with a limit.
pub(crate) fn volume(name: &str, section: &Section) -> Value {
    match &section.claim {
        Some(claim) => json!({"name": name, "ephemeral": {"volumeClaimTemplate": claim}}),
        None => limited_volume(name, section),
    }
}

/// An empty directory with the section's limit.
pub(crate) fn limited_volume(name: &str, section: &Section) -> Value {
    let limit = section.limit.clone().unwrap_or_else(|| Value::from("200Mi"));
    json!({"name": name, "emptyDir": {"sizeLimit": limit}})
}

/// Everything that decides how one container changes.
struct ContainerChange<'a, 'b> {
    scene: &'a Scene<'b>,
    language: Language,
    section: &'a Section,
    certificates: &'a Certificates,
    libc: Libc,
}

impl ContainerChange<'_, '_> {
    fn instrument_container(
        &self,
        mut container: Map<String, Value>,
        name: &str,
    ) -> Result<(Map<String, Value>, Option<Warning>), Refusal> {
        let path = mount_path(self.language, name);
        if pod::mounted_at(&container, &path).is_some() {
            return Err(Refusal::PathTaken(path));
        }
        let env = pod::list_mut(&mut container, "env")?;
        self.check(env)?;
        env::prepend_addresses(env);
        env::append_absent(env, &self.section.env);
        if self.language == Language::Python {
            wrap_python_path(env);
        }
        env::append_absent(env, &self.scene.instrumentation.env);
        self.append_defaults(env, &path);
        pod::add_mount(&mut container, &volume_name(self.language), &path, false)?;
        let image = container
            .get("image")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let app = App {
            container: name,
            image: &image,
        };
        let scene = self.scene;
        let remark = sdk::apply(
            &mut container,
            scene.identity,
            scene.instrumentation,
            app,
            self.certificates,
        )?;
        Ok((container, remark))
    }

    /// Variables that must be extended have to be literals, wherever they come from. One indirect source is
    /// enough, also behind a literal of higher rank: the literal may have come from an Instrumentation too,
    /// through another language, and then the answer would change from pass to pass.
    fn check(&self, env: &[Value]) -> Result<(), Refusal> {
        let common = self.scene.instrumentation.env.as_slice();
        let all = [env, self.section.env.as_slice(), common];
        let own = [env, self.section.env.as_slice()];
        let indirect = |lists: &[&[Value]], name: &'static str| {
            if env::is_indirect(lists, name) {
                Err(Refusal::Indirect(name))
            } else {
                Ok(())
            }
        };
        match self.language {
            Language::Java => indirect(&all, "JAVA_TOOL_OPTIONS"),
            Language::NodeJs => indirect(&all, "NODE_OPTIONS"),
            // Common variables come after PYTHONPATH is set, so they do not count.
            Language::Python => indirect(&own, "PYTHONPATH"),
            Language::DotNet if env::held_in(&own, "OTEL_DOTNET_AUTO_HOME") != Held::Absent => {
                Err(Refusal::DotNetHome)
            }
            Language::DotNet => DOTNET_LISTS.iter().try_for_each(|name| indirect(&all, name)),
            _ => Ok(()),
        }
    }

    fn append_defaults(&self, env: &mut Vec<Value>, path: &str) {
        match self.language {
            Language::Java => {
                append_option(
                    env,
                    "JAVA_TOOL_OPTIONS",
                    &format!(" -javaagent:{path}/javaagent.jar"),
                );
                if !self.section.extensions.is_empty() {
                    let extensions = format!(" -Dotel.javaagent.extensions={path}/extensions");
                    append_option(env, "JAVA_TOOL_OPTIONS", &extensions);
                }
            }
            Language::NodeJs => {
                append_option(
                    env,
                    "NODE_OPTIONS",
                    &format!(" --require {path}/autoinstrumentation.js"),
                );
                env::append_value(env, "OTEL_METRICS_EXPORTER", "otlp");
            }
            Language::Python => {
                env::append_value(env, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
                for signal in ["TRACES", "METRICS", "LOGS"] {
                    env::append_value(env, &format!("OTEL_{signal}_EXPORTER"), "otlp");
                }
            }
            Language::DotNet => append_dotnet(env, path, self.libc),
            _ => {}
        }
    }
}

/// Options are separated by blanks; the leading one is there even without an old value, as in the operator.
fn append_option(env: &mut Vec<Value>, variable: &str, option: &str) {
    let old = match env::held(env, variable) {
        Held::Literal(old) => old.to_owned(),
        _ => String::new(),
    };
    env::set(env, variable, &format!("{old}{option}"));
}

/// The hook comes first so that it is found, the SDK last so that the application's own packages win.
fn wrap_python_path(env: &mut Vec<Value>) {
    let sdk = copy_dir(Language::Python);
    let hook = format!("{sdk}/opentelemetry/instrumentation/auto_instrumentation");
    let value = match env::held(env, "PYTHONPATH") {
        Held::Literal(old) if !old.is_empty() => format!("{hook}:{old}:{sdk}"),
        _ => format!("{hook}:{sdk}"),
    };
    env::set(env, "PYTHONPATH", &value);
}

fn append_dotnet(env: &mut Vec<Value>, home: &str, libc: Libc) {
    let platform = if libc == Libc::Musl { "linux-musl" } else { "linux" };
    let native = format!("{home}/{platform}/OpenTelemetry.AutoInstrumentation.Native.so");
    env::append_value(env, "CORECLR_ENABLE_PROFILING", "1");
    env::append_value(env, "CORECLR_PROFILER", PROFILER);
    env::append_value(env, "CORECLR_PROFILER_PATH", &native);
    let [hooks, deps, store] = DOTNET_LISTS;
    env::extend_path(
        env,
        hooks,
        &format!("{home}/net/OpenTelemetry.AutoInstrumentation.StartupHook.dll"),
    );
    env::extend_path(env, deps, &format!("{home}/AdditionalDeps"));
    env::append_value(env, "OTEL_DOTNET_AUTO_HOME", home);
    env::extend_path(env, store, &format!("{home}/store"));
}

/// Adds the copy container and Java's extensions, in front of the first target if that is an init container.
fn add_copies(
    spec: &mut Map<String, Value>,
    scene: &Scene<'_>,
    language: Language,
    section: &Section,
    first: &Place,
    libc: Libc,
) -> Result<(), Malformed> {
    let security = security::of_added(spec, scene, first);
    let mut copies = vec![copy_container(scene, language, section, libc)];
    copies.extend(section.extensions.iter().enumerate().map(|(index, extension)| {
        let source = format!("{}/.", extension.dir);
        let into = format!("{}/extensions", copy_dir(language));
        json!({"name": format!("{AGENT}-extension-{index}"), "image": extension.image,
               "command": ["cp", "-r", source, into]})
    }));
    let inits = pod::list_mut(spec, "initContainers")?;
    let mut at = if first.init { first.index } else { inits.len() };
    for mut copy in copies {
        // A copy of an earlier pass stays as it is, but must not come after a process that needs it.
        if let Some(found) = inits.iter().position(|init| pod::name(init) == pod::name(&copy)) {
            if found > at {
                let earlier = inits.remove(found);
                inits.insert(at, earlier);
                at += 1;
            }
            continue;
        }
        finish_copy(&mut copy, language, section, security.as_ref());
        inits.insert(at.min(inits.len()), copy);
        at += 1;
    }
    Ok(())
}

fn copy_container(scene: &Scene<'_>, language: Language, section: &Section, libc: Libc) -> Value {
    let dir = copy_dir(language);
    let command = match (language, libc) {
        (Language::Java, _) => json!(["cp", "/javaagent.jar", format!("{dir}/javaagent.jar")]),
        (Language::Python, Libc::Musl) => json!(["cp", "-r", "/autoinstrumentation-musl/.", dir]),
        _ => json!(["cp", "-r", "/autoinstrumentation/.", dir]),
    };
    let mut copy = json!({"name": volume_name(language), "image": section.image, "command": command});
    if let (false, Some(map)) = (scene.instrumentation.pull_policy.is_empty(), copy.as_object_mut()) {
        map.insert(
            "imagePullPolicy".to_owned(),
            Value::from(scene.instrumentation.pull_policy.as_str()),
        );
    }
    copy
}

fn finish_copy(copy: &mut Value, language: Language, section: &Section, security: Option<&Value>) {
    let Some(map) = copy.as_object_mut() else { return };
    let mount = json!([{"name": volume_name(language), "mountPath": copy_dir(language)}]);
    map.insert("volumeMounts".to_owned(), mount);
    pod::set_some(map, "resources", section.resources.clone());
    pod::set_some(map, "securityContext", security.cloned());
}
