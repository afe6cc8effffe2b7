//! The attach scripts, run by a real shell on directories of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::{app, case};

/// A directory of this test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("remora-otel-{name}-{}", std::process::id()));
        let scratch = Self(dir);
        for part in [
            "opentelemetry/conf",
            "opentelemetry-webserver/agent",
            "opentelemetry-webserver/source-conf",
            "bin",
        ] {
            fs::create_dir_all(scratch.0.join(part)).unwrap();
        }
        let template = scratch
            .0
            .join("opentelemetry/conf/opentelemetry_sdk_log4cxx.xml.template");
        fs::write(template, "<file>__agent_log_dir__/x</file>").unwrap();
        scratch
    }

    fn staged(&self, file: &str) -> PathBuf {
        self.0.join("opentelemetry-webserver/source-conf").join(file)
    }

    /// Runs a container's script with its paths moved into the directory.
    fn run(&self, script: &str, argument: &str, env: &[(&str, &str)]) {
        let moved = script.replace("/opt/", &format!("{}/", self.0.display()));
        let path = format!("{}:/usr/bin:/bin", self.0.join("bin").display());
        let mut shell = Command::new("/bin/sh");
        shell
            .arg("-c")
            .arg(moved)
            .arg("--")
            .arg(argument)
            .env_clear()
            .env("PATH", path)
            .envs(env.iter().copied());
        let done = shell.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn apache_configuration_includes_the_module_once() {
    let run = case(&[("inject-apache-httpd", "true")], &json!({}), app()).run();
    let script = run.container("otel-agent-attach-apache")["args"][0]
        .as_str()
        .unwrap();
    let scratch = Scratch::new("apache");
    fs::write(scratch.staged("httpd.conf"), "Listen 80\n").unwrap();
    let env = [
        ("OTEL_APACHE_AGENT_CONF", "Name <<SID-PLACEHOLDER>>\n"),
        ("APACHE_SERVICE_INSTANCE_ID", "pod-1"),
    ];
    for _ in 0..2 {
        scratch.run(script, "/usr/local/apache2/conf", &env);
        let expected = "Listen 80\n\nInclude /usr/local/apache2/conf/opentemetry_agent.conf\n";
        assert_eq!(read(&scratch.staged("httpd.conf")), expected);
    }
    assert_eq!(
        read(&scratch.staged("opentemetry_agent.conf")).trim_end(),
        "Name pod-1"
    );
    let log = scratch
        .0
        .join("opentelemetry-webserver/agent/conf/opentelemetry_sdk_log4cxx.xml");
    let logs = scratch.0.join("opentelemetry-webserver/agent/logs");
    assert_eq!(read(&log), format!("<file>{}/x</file>", logs.display()));
}

#[test]
fn nginx_configuration_loads_the_module_of_its_version_once() {
    let run = case(&[("inject-nginx", "true")], &json!({}), app()).run();
    let clone = run.container("otel-agent-source-container-clone")["args"][0]
        .as_str()
        .unwrap();
    let attach = run.container("otel-agent-attach-nginx")["args"][0]
        .as_str()
        .unwrap();
    let scratch = Scratch::new("nginx");
    let nginx = scratch.0.join("bin/nginx");
    fs::write(
        &nginx,
        "#!/bin/sh\necho 'nginx version: nginx/1.25.3 (Ubuntu)' >&2\n",
    )
    .unwrap();
    fs::set_permissions(&nginx, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let conf = scratch.0.join("etc");
    fs::create_dir_all(&conf).unwrap();
    fs::write(conf.join("nginx.conf"), "events {}\n").unwrap();
    let env = [
        ("OTEL_NGINX_AGENT_CONF", "Id <<SID-PLACEHOLDER>>;\n"),
        ("OTEL_NGINX_SERVICE_INSTANCE_ID", "pod-1"),
    ];
    scratch.run(clone, &conf.display().to_string(), &[]);
    for _ in 0..2 {
        scratch.run(attach, "nginx.conf", &env);
        let main = read(&scratch.staged("nginx.conf"));
        let module = "WebServerModule/Nginx/1.25.3/ngx_http_opentelemetry_module.so;\nevents {}\n";
        assert!(
            main.starts_with("env OTEL_RESOURCE_ATTRIBUTES;\nload_module ") && main.ends_with(module),
            "{main}"
        );
        assert_eq!(main.lines().count(), 3);
    }
    assert_eq!(
        read(&scratch.staged("conf.d/opentelemetry_agent.conf")).trim_end(),
        "Id pod-1;"
    );
}
