//! Apache HTTPD and nginx: the server's configuration is cloned into a volume, a module is added to it, and
//! the changed copy is mounted over the original.
//!
//! Two init containers per target. The first target gets the operator's names. differs from the operator:
//! further targets in the language's own list get names of their own, because it would give them variables
//! but no module. Further targets that only the list for all languages names get variables, as there: they
//! may well be no web servers, and cloning the configuration of one that has none would stop the pod.
//!
//! Values reach the scripts only as environment and arguments; the scripts are constant.

use serde_json::{Map, Value, json};

use super::agent::{self, Refusal};
use super::env;
use super::identity::App;
use super::instrumentation::Section;
use super::language::Language;
use super::names;
use super::pod::{self, Malformed, Place};
use super::sdk;
use super::security;
use super::tls::{self, Certificates};
use super::{Scene, add_sdk_environment};
use crate::warning::Warning;

mod config;

const AGENT_DIR: &str = "/opt/opentelemetry-webserver/agent";
const STAGED_DIR: &str = "/opt/opentelemetry-webserver/source-conf";
const CLONE: &str = "otel-agent-source-container-clone";
const LIBRARIES: &str = "/opt/opentelemetry-webserver/agent/sdk_lib/lib";

const APACHE_ATTACH: &str = include_str!("webserver/apache_attach.sh");
const NGINX_CLONE: &str = include_str!("webserver/nginx_clone.sh");
const NGINX_ATTACH: &str = include_str!("webserver/nginx_attach.sh");

/// Whether the container has a web server module.
pub(crate) fn is_present(container: &Map<String, Value>) -> bool {
    pod::mounted_at(container, AGENT_DIR).is_some()
}

/// Instruments the targets; returns those that were accepted.
pub(crate) fn inject(
    spec: &mut Map<String, Value>,
    scene: &Scene<'_>,
    language: Language,
    targets: &[Place],
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Place>, Malformed> {
    let section = scene.instrumentation.section(language, scene.operator);
    let paths = match config::paths(language, &section) {
        Ok(paths) => paths,
        Err(reason) => {
            warnings.push(skip_warning(language, &reason));
            return Ok(Vec::new());
        }
    };
    let certificates = tls::plan(scene.instrumentation, spec);
    let mut accepted = Vec::new();
    for place in targets {
        let conf = match config::text(language, scene, &section, &place.name) {
            Ok(conf) => conf,
            Err(reason) => {
                warnings.push(skip_warning(language, &reason));
                break;
            }
        };
        let taken = serves(spec, language);
        let server = Server {
            scene,
            language,
            section: &section,
            certificates: &certificates,
            paths: &paths,
        };
        let done = if taken && !scene.own.contains(&place.name) {
            server.variables_only(spec, place)
        } else {
            server.attach(spec, place, &conf)
        };
        match done {
            Ok(remark) => {
                warnings.extend(remark);
                accepted.push(place.clone());
            }
            Err(refusal) => warnings.push(refusal.warning(language, &place.name)),
        }
    }
    tls::add_volumes(&certificates, spec)?;
    Ok(accepted)
}

/// Whether some container has this server's module.
fn serves(spec: &Map<String, Value>, language: Language) -> bool {
    let volume = format!("otel-{}-agent", server_name(language));
    let mounts = |container: &Value| {
        let map = container.as_object();
        map.is_some_and(|map| {
            pod::mounts(map)
                .iter()
                .any(|mount| pod::name(mount).starts_with(&volume))
        })
    };
    pod::list(spec, "containers").iter().any(mounts)
}

fn server_name(language: Language) -> &'static str {
    if language == Language::Nginx {
        "nginx"
    } else {
        "apache"
    }
}

fn skip_warning(language: Language, reason: &str) -> Warning {
    Warning::pod(
        "otel-webserver-config",
        format!("{} was not injected: {reason}", language.name()),
    )
}

/// Names of what is added for one target.
struct Added {
    clone: String,
    attach: String,
    conf_volume: String,
    agent_volume: String,
}

impl Added {
    fn new(spec: &Map<String, Value>, language: Language, container: &str) -> Self {
        let server = server_name(language);
        let free_container = |stem: &str| {
            let taken = [true, false]
                .iter()
                .any(|init| pod::find(spec, *init, stem).is_some());
            if taken {
                names::joined(stem, container)
            } else {
                stem.to_owned()
            }
        };
        let free_volume = |stem: &str| {
            let taken = pod::volume(spec, stem).is_some();
            if taken {
                names::joined(stem, container)
            } else {
                stem.to_owned()
            }
        };
        Self {
            clone: free_container(CLONE),
            attach: free_container(&format!("otel-agent-attach-{server}")),
            conf_volume: free_volume(&format!("otel-{server}-conf-dir")),
            agent_volume: free_volume(&format!("otel-{server}-agent")),
        }
    }
}

/// Everything that decides how one server changes.
struct Server<'a, 'b> {
    scene: &'a Scene<'b>,
    language: Language,
    section: &'a Section,
    certificates: &'a Certificates,
    paths: &'a config::Paths,
}

impl Server<'_, '_> {
    fn attach(
        &self,
        spec: &mut Map<String, Value>,
        place: &Place,
        conf: &str,
    ) -> Result<Vec<Warning>, Refusal> {
        let added = Added::new(spec, self.language, &place.name);
        let mut target = pod::container(spec, place)?;
        let env = pod::list_mut(&mut target, "env")?;
        self.check(env)?;
        let clone = self.clone_container(&added, &target)?;
        self.instrument_container(&mut target, &added)?;
        let image = target
            .get("image")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let app = App {
            container: &place.name,
            image: &image,
        };
        let scene = self.scene;
        let remark = sdk::apply(
            &mut target,
            scene.identity,
            scene.instrumentation,
            app,
            self.certificates,
        )?;
        let security = security::of_added(spec, scene, place);
        let obstacle = security::obstacle(spec, scene, place, &self.section.image);
        let attach = self.attach_container(&added, conf, security.as_ref());
        let mut clone = clone;
        pod::set_some(&mut clone, "securityContext", security);
        let inits = pod::list_mut(spec, "initContainers")?;
        inits.push(Value::Object(clone));
        inits.push(Value::Object(attach));
        for volume in self.volumes(&added) {
            pod::add_volume(spec, volume)?;
        }
        pod::put_container(spec, place, target);
        Ok(remark.into_iter().chain(obstacle).collect())
    }

    fn variables_only(&self, spec: &mut Map<String, Value>, place: &Place) -> Result<Vec<Warning>, Refusal> {
        let text = format!(
            "container {} gets variables but no {} module, which only the first container of {} gets; \
             name it in {} if it is a server",
            place.name,
            self.language.name(),
            names::CONTAINERS,
            self.language.containers_key(),
        );
        let mut warnings = vec![Warning::container("otel-webserver-first-only", &place.name, text)];
        let mut target = pod::container(spec, place)?;
        if !sdk::is_present(&target) {
            let image = target
                .get("image")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            let app = App {
                container: &place.name,
                image: &image,
            };
            warnings.extend(add_sdk_environment(
                &mut target,
                self.scene,
                &self.section.env,
                app,
                self.certificates,
            )?);
            pod::put_container(spec, place, target);
        }
        Ok(warnings)
    }

    fn check(&self, env: &[Value]) -> Result<(), Refusal> {
        let lists = [env, self.section.env.as_slice()];
        if self.language == Language::Nginx && env::is_indirect(&lists, "LD_LIBRARY_PATH") {
            return Err(Refusal::Indirect("LD_LIBRARY_PATH"));
        }
        Ok(())
    }

    /// The target itself, doing nothing but handing out its configuration.
    fn clone_container(
        &self,
        added: &Added,
        target: &Map<String, Value>,
    ) -> Result<Map<String, Value>, Malformed> {
        let mut clone = Map::new();
        clone.insert("name".to_owned(), Value::from(added.clone.as_str()));
        for key in ["image", "envFrom", "volumeMounts", "imagePullPolicy"] {
            pod::set_some(&mut clone, key, target.get(key).cloned());
        }
        let mut env = pod::list(target, "env").to_vec();
        env::append_absent(&mut env, &self.section.env);
        if !env.is_empty() {
            clone.insert("env".to_owned(), Value::Array(env));
        }
        let dir = self.paths.dir.as_str();
        if self.language == Language::Nginx {
            clone.insert("command".to_owned(), json!(["/bin/sh", "-c"]));
            clone.insert("args".to_owned(), json!([NGINX_CLONE, "--", dir]));
        } else {
            clone.insert(
                "command".to_owned(),
                json!(["cp", "-r", format!("{dir}/."), STAGED_DIR]),
            );
        }
        pod::add_mount(&mut clone, &added.conf_volume, STAGED_DIR, false)?;
        pod::set_some(&mut clone, "resources", self.section.resources.clone());
        Ok(clone)
    }

    /// Changes the target: the copy replaces the mount that brought the configuration.
    fn instrument_container(&self, target: &mut Map<String, Value>, added: &Added) -> Result<(), Malformed> {
        let env = pod::list_mut(target, "env")?;
        env::prepend_addresses(env);
        env::append_absent(env, &self.section.env);
        if self.language == Language::Nginx {
            env::extend_path(env, "LD_LIBRARY_PATH", LIBRARIES);
        }
        env::append_absent(env, &self.scene.instrumentation.env);
        let mounts = pod::list_mut(target, "volumeMounts")?;
        let inside = |mount: &Value| {
            let path = mount.get("mountPath").and_then(Value::as_str);
            path.is_some_and(|path| path.contains(&self.paths.dir))
        };
        if let Some(at) = mounts.iter().position(inside) {
            mounts.remove(at);
        }
        pod::add_mount(target, &added.agent_volume, AGENT_DIR, false)?;
        pod::add_mount(target, &added.conf_volume, &self.paths.dir, false)
    }

    fn attach_container(&self, added: &Added, conf: &str, security: Option<&Value>) -> Map<String, Value> {
        let nginx = self.language == Language::Nginx;
        let (script, argument) = if nginx {
            (NGINX_ATTACH, &self.paths.file)
        } else {
            (APACHE_ATTACH, &self.paths.dir)
        };
        let (conf_variable, id_variable) = if nginx {
            ("OTEL_NGINX_AGENT_CONF", "OTEL_NGINX_SERVICE_INSTANCE_ID")
        } else {
            ("OTEL_APACHE_AGENT_CONF", "APACHE_SERVICE_INSTANCE_ID")
        };
        let mut env = Vec::new();
        env::append_absent(&mut env, &self.section.env);
        env::append_absent(&mut env, &self.scene.instrumentation.env);
        env::append_field(&mut env, "OTEL_POD_IP", "status.podIP");
        env::append_field(&mut env, "OTEL_NODE_IP", "status.hostIP");
        env::append_value(&mut env, conf_variable, conf);
        env::append_field(&mut env, id_variable, "metadata.name");
        let mut attach = Map::new();
        attach.insert("name".to_owned(), Value::from(added.attach.as_str()));
        attach.insert("image".to_owned(), Value::from(self.section.image.as_str()));
        attach.insert("command".to_owned(), json!(["/bin/sh", "-c"]));
        attach.insert("args".to_owned(), json!([script, "--", argument]));
        attach.insert("env".to_owned(), Value::Array(env));
        let mounts = json!([{"name": added.agent_volume, "mountPath": AGENT_DIR},
                            {"name": added.conf_volume, "mountPath": STAGED_DIR}]);
        attach.insert("volumeMounts".to_owned(), mounts);
        let policy = &self.scene.instrumentation.pull_policy;
        let policy = (!policy.is_empty()).then(|| Value::from(policy.as_str()));
        pod::set_some(&mut attach, "imagePullPolicy", policy);
        pod::set_some(&mut attach, "resources", self.section.resources.clone());
        pod::set_some(&mut attach, "securityContext", security.cloned());
        attach
    }

    fn volumes(&self, added: &Added) -> [Value; 2] {
        if self.language == Language::Nginx {
            // operator: no size limit and no claim for nginx.
            return [
                json!({"name": added.conf_volume, "emptyDir": {}}),
                json!({"name": added.agent_volume, "emptyDir": {}}),
            ];
        }
        [
            agent::limited_volume(&added.conf_volume, self.section),
            agent::volume(&added.agent_volume, self.section),
        ]
    }
}
