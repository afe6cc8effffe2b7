//! `remora inject --native auto`: what decides between native and classic sidecars.
#![expect(clippy::unwrap_used, reason = "in a test a step that fails is a failure")]

#[path = "native_auto/api_server.rs"]
mod api_server;

use api_server::{ApiServer, Authority, nodes};
use serde_json::json;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: web, image: web}]
";

/// A directory with a pod, and remora without anything of the environment that could matter.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self {
            dir: TempDir::new().unwrap(),
        };
        bench.write("pod.yaml", POD);
        bench
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    fn remora(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remora"));
        command
            .args(["inject", "--injectors", "mesh", "-f"])
            .arg(self.dir.path().join("pod.yaml"))
            .env_clear()
            .env("HOME", self.dir.path())
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, change: impl FnOnce(&mut Command)) -> Outcome {
        let mut command = self.remora();
        change(&mut command);
        Outcome::of(&command.output().unwrap())
    }

    /// With `--kubeconfig` for a server that answers so.
    fn ask(&self, answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Outcome {
        let server = ApiServer::plain(answer);
        let file = self.write("kubeconfig", &kubeconfig(&server));
        self.run(|c| {
            c.arg("--kubeconfig").arg(file);
        })
    }
}

struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout.clone()).unwrap(),
            stderr: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    #[track_caller]
    fn is_native(&self) {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert_eq!(self.stderr, "");
        assert!(self.stdout.contains("restartPolicy: Always"), "{}", self.stdout);
    }

    #[track_caller]
    fn is_classic(&self) {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert!(self.stdout.contains("name: istio-proxy"), "{}", self.stdout);
        assert!(!self.stdout.contains("restartPolicy: Always"), "{}", self.stdout);
    }

    /// Failed with nothing written, and with these words.
    #[track_caller]
    fn failed(&self, words: &[&str]) {
        assert_eq!(self.code, Some(1), "{}", self.stderr);
        assert_eq!(self.stdout, "");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in: {}", self.stderr);
        }
    }
}

const REMEDY: &str = "decide without it by --native on, --native off or --kubelet-min VERSION";

fn kubeconfig(server: &ApiServer) -> String {
    kubeconfig_with(&format!("http://{}", server.address()), &json!({}), &json!({}))
}

fn kubeconfig_with(server: &str, cluster: &serde_json::Value, user: &serde_json::Value) -> String {
    let mut cluster = cluster.clone();
    cluster["server"] = server.into();
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u"}},
            {"name": "there", "context": {"cluster": "nowhere", "user": "u"}},
        ],
        "clusters": [
            {"name": "c", "cluster": cluster},
            {"name": "nowhere", "cluster": {"server": closed_port()}},
        ],
        "users": [{"name": "u", "user": user}],
    })
    .to_string()
}

/// An address nobody listens at.
fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn new_nodes(_: &str) -> (u16, String) {
    (200, nodes(&[("a", "v1.33.0"), ("b", "v1.34.1-eks-5")], ""))
}

fn old_node(_: &str) -> (u16, String) {
    (200, nodes(&[("a", "v1.33.0"), ("b", "v1.32.9")], ""))
}

#[test]
fn new_nodes_get_native_sidecars() {
    Bench::new().ask(new_nodes).is_native();
}

#[test]
fn no_nodes_get_native_sidecars() {
    Bench::new().ask(|_| (200, nodes(&[], ""))).is_native();
}

#[test]
fn one_old_node_makes_all_classic_and_is_named() {
    let outcome = Bench::new().ask(old_node);
    outcome.is_classic();
    assert!(
        outcome.stderr.starts_with("note: classic sidecars"),
        "{}",
        outcome.stderr
    );
    for word in ["b (v1.32.9)", "--native on", "sidecar.istio.io/nativeSidecar"] {
        assert!(outcome.stderr.contains(word), "{}", outcome.stderr);
    }
}

#[test]
fn a_node_without_a_version_counts_as_old() {
    let outcome = Bench::new().ask(|_| {
        (
            200,
            r#"{"metadata":{},"items":[{"metadata":{"name":"x"}}]}"#.to_owned(),
        )
    });
    outcome.is_classic();
    assert!(outcome.stderr.contains("x (unknown)"), "{}", outcome.stderr);
}

#[test]
fn the_second_page_counts_too() {
    let bench = Bench::new();
    let server = ApiServer::plain(|head| {
        if head.contains("continue=more") {
            (200, nodes(&[("z", "v1.20.0")], ""))
        } else {
            (200, nodes(&[("a", "v1.33.0")], "more"))
        }
    });
    let file = bench.write("kubeconfig", &kubeconfig(&server));
    let outcome = bench.run(|c| {
        c.arg("--kubeconfig").arg(file);
    });
    outcome.is_classic();
    assert!(outcome.stderr.contains("z (v1.20.0)"), "{}", outcome.stderr);
    let asked = server.asked();
    assert_eq!(asked.len(), 2);
    assert!(
        asked
            .iter()
            .all(|head| head.starts_with("GET /api/v1/nodes?") && head.contains("limit=500")),
        "{asked:?}"
    );
}

#[test]
fn forbidden_is_an_error_with_the_words_of_the_server() {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": "nodes is forbidden: User \"u\" cannot list resource \"nodes\"",
    });
    Bench::new().ask(move |_| (403, status.to_string())).failed(&[
        "the server answered 403: nodes is forbidden: User \"u\" cannot list",
        "list the nodes of http://127.0.0.1:",
        "(context \"here\" of ",
        REMEDY,
    ]);
}

#[test]
fn an_answer_that_is_no_list_is_an_error() {
    Bench::new()
        .ask(|_| (200, "<html>please log in</html>".to_owned()))
        .failed(&["the answer is not what a Kubernetes API server says", REMEDY]);
}

#[test]
fn a_busy_server_is_asked_again() {
    let times = AtomicUsize::new(0);
    Bench::new()
        .ask(move |head| match times.fetch_add(1, Ordering::SeqCst) {
            0 => (503, "starting".to_owned()),
            _ => new_nodes(head),
        })
        .is_native();
}

#[test]
fn a_server_that_stays_busy_is_an_error_that_says_so() {
    Bench::new()
        .ask(|_| (429, "too many".to_owned()))
        .failed(&["the server answered 429: too many", REMEDY]);
}

#[test]
fn nobody_listening_is_an_error() {
    let bench = Bench::new();
    let server = closed_port();
    let file = bench.write("kubeconfig", &kubeconfig_with(&server, &json!({}), &json!({})));
    bench
        .run(|c| {
            c.arg("--kubeconfig").arg(&file);
        })
        .failed(&[
            &format!(
                "list the nodes of {server} (context \"here\" of {})",
                file.display()
            ),
            "Connection refused",
            REMEDY,
        ]);
}

#[test]
fn an_unknown_context_is_an_error_that_lists_those_there_are() {
    let bench = Bench::new();
    let server = ApiServer::plain(new_nodes);
    let file = bench.write("kubeconfig", &kubeconfig(&server));
    bench
        .run(|c| {
            c.args(["--context", "else"]).arg("--kubeconfig").arg(&file);
        })
        .failed(&[&format!(
            "{}: no context \"else\"; there are here, there",
            file.display()
        )]);
    assert!(server.asked().is_empty());
}

#[test]
fn broken_and_missing_kubeconfigs_are_errors_that_name_the_file() {
    let bench = Bench::new();
    let broken = bench.write("broken", "contexts: {{\n");
    for file in [broken, bench.dir.path().join("missing")] {
        bench
            .run(|c| {
                c.env("KUBECONFIG", &file);
            })
            .failed(&[&format!("read kubeconfig {}", file.display()), REMEDY]);
    }
}

#[test]
fn the_environment_names_a_kubeconfig() {
    let bench = Bench::new();
    let server = ApiServer::plain(old_node);
    let file = bench.write("kubeconfig", &kubeconfig(&server));
    let list = format!("{}/missing:{}", bench.dir.path().display(), file.display());
    bench
        .run(|c| {
            c.env("KUBECONFIG", list);
        })
        .is_classic();
}

#[test]
fn the_flag_wins_over_the_environment() {
    let bench = Bench::new();
    let (old, new) = (ApiServer::plain(old_node), ApiServer::plain(new_nodes));
    let old_file = bench.write("old", &kubeconfig(&old));
    let new_file = bench.write("new", &kubeconfig(&new));
    bench
        .run(|c| {
            c.env("KUBECONFIG", old_file).arg("--kubeconfig").arg(new_file);
        })
        .is_native();
    assert!(old.asked().is_empty());
}

#[test]
fn a_context_alone_is_looked_up_in_the_home_directory() {
    let bench = Bench::new();
    let server = ApiServer::plain(old_node);
    bench.write(".kube/config", &kubeconfig(&server));
    bench
        .run(|c| {
            c.args(["--context", "here"]);
        })
        .is_classic();
}

#[test]
fn nobody_is_asked_unless_a_cluster_was_named() {
    let bench = Bench::new();
    let server = ApiServer::plain(old_node);
    bench.write(".kube/config", &kubeconfig(&server));
    bench.run(|_| {}).is_native();
    bench
        .run(|c| {
            c.env("KUBECONFIG", "");
        })
        .is_native();
    assert!(server.asked().is_empty());
}

#[test]
fn nobody_is_asked_when_it_is_decided() {
    let bench = Bench::new();
    let server = ApiServer::plain(old_node);
    let file = bench.write("kubeconfig", &kubeconfig(&server));
    let with = |args: &[&str], variable: &str| {
        bench.run(|c| {
            c.args(args)
                .env("KUBECONFIG", &file)
                .env("ENABLE_NATIVE_SIDECARS", variable);
        })
    };
    with(&["--native", "on"], "false").is_native();
    with(&["--native", "off"], "true").is_classic();
    with(&["--kubelet-min", "1.33"], "false").is_native();
    with(&["--kubelet-min", "1.32"], "true").is_classic();
    with(&[], "true").is_native();
    with(&[], "false").is_classic();
    assert!(server.asked().is_empty());
    with(&[], "auto").is_classic();
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn any_other_value_of_the_variable_is_an_error() {
    Bench::new()
        .run(|c| {
            c.env("ENABLE_NATIVE_SIDECARS", "yes");
        })
        .failed(&["ENABLE_NATIVE_SIDECARS: \"yes\" is none of true, false and auto"]);
}

#[test]
fn tokens_are_sent() {
    let bench = Bench::new();
    let server = ApiServer::plain(new_nodes);
    let url = format!("http://{}", server.address());
    let run = |token: &str| {
        let file = bench.write(
            "kubeconfig",
            &kubeconfig_with(&url, &json!({}), &json!({"token": token})),
        );
        bench.run(|c| {
            c.arg("--kubeconfig").arg(file);
        })
    };
    run("abc").is_native();
    let asked = server.asked().concat().to_lowercase();
    assert!(asked.contains("authorization: bearer abc"), "{asked}");
    let outcome = run("abc\n");
    outcome.failed(&["token has characters no token can have"]);
    assert!(!outcome.stderr.contains("panic"), "{}", outcome.stderr);
}

#[test]
fn tls_with_a_private_authority_and_a_client_certificate() {
    let bench = Bench::new();
    let authority = Authority::new();
    let server = ApiServer::tls(&authority, new_nodes);
    let url = format!("https://{}", server.address());
    let (certificate, key) = authority.issue("u");
    bench.write("ca.pem", &authority.pem());
    bench.write("user.pem", &certificate.pem());
    bench.write("user.key", &key.serialize_pem());
    let user = json!({"client-certificate": "user.pem", "client-key": "user.key"});
    let run = |cluster: serde_json::Value, user: &serde_json::Value| {
        let file = bench.write("kubeconfig", &kubeconfig_with(&url, &cluster, user));
        bench.run(|c| {
            c.arg("--kubeconfig").arg(file);
        })
    };
    let authority = json!({"certificate-authority": "ca.pem"});
    run(authority.clone(), &user).is_native();
    run(json!({"insecure-skip-tls-verify": true}), &user).is_native();
    run(json!({}), &user).failed(&["certificate", REMEDY]);
    run(authority, &json!({})).failed(&[&url, REMEDY]);
    assert_eq!(server.asked().len(), 2);
}

#[test]
fn a_plugin_gives_credentials_and_leaves_the_manifests_alone() {
    let bench = Bench::new();
    let server = ApiServer::plain(new_nodes);
    let plugin = bench.write(
        "plugin",
        "#!/bin/sh\ncat >/dev/null\necho '{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"fetched\"}}'\n",
    );
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "IfAvailable",
    }});
    let url = format!("http://{}", server.address());
    let file = bench.write("kubeconfig", &kubeconfig_with(&url, &json!({}), &user));
    let mut child = Command::new(env!("CARGO_BIN_EXE_remora"))
        .args(["inject", "-f", "-", "--kubeconfig"])
        .arg(file)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(POD.as_bytes()).unwrap();
    Outcome::of(&child.wait_with_output().unwrap()).is_native();
    let asked = server.asked().concat().to_lowercase();
    assert!(asked.contains("authorization: bearer fetched"), "{asked}");
}

#[test]
fn a_plugin_that_fails_is_named_with_what_it_said_and_nothing_else() {
    let bench = Bench::new();
    let plugin = bench.write(
        "plugin",
        "#!/bin/sh\necho 'login has expired' >&2\necho token-part\nexit 3\n",
    );
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let run = |command: &str| {
        let user = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": command, "installHint": "install it",
            "env": [{"name": "KEY", "value": "s3cret"}],
        }});
        let file = bench.write("kubeconfig", &kubeconfig_with(&closed_port(), &json!({}), &user));
        bench.run(|c| {
            c.arg("--kubeconfig").arg(file);
        })
    };
    let outcome = run("./plugin");
    outcome.failed(&["plugin\" failed with exit status: 3: login has expired", REMEDY]);
    assert!(
        !outcome.stderr.contains("s3cret") && !outcome.stderr.contains("token-part"),
        "{}",
        outcome.stderr
    );
    run("no-such-plugin").failed(&[
        "cannot run the credential plugin \"no-such-plugin\"",
        "; install it",
    ]);
}

#[test]
fn a_proxy_of_the_environment_is_not_for_this_machine() {
    let bench = Bench::new();
    let server = ApiServer::plain(new_nodes);
    let file = bench.write("kubeconfig", &kubeconfig(&server));
    bench
        .run(|c| {
            c.env("KUBECONFIG", file)
                .env("HTTPS_PROXY", closed_port())
                .env("HTTP_PROXY", closed_port());
        })
        .is_native();
}

#[test]
fn a_machine_without_a_certificate_store_can_ask_where_none_is_needed() {
    let bench = Bench::new();
    let run = |server: &str, cluster: serde_json::Value, user: &serde_json::Value| {
        let file = bench.write("kubeconfig", &kubeconfig_with(server, &cluster, user));
        bench.run(|c| {
            c.arg("--kubeconfig")
                .arg(file)
                .env("SSL_CERT_FILE", "/nonexistent")
                .env("SSL_CERT_DIR", "/nonexistent");
        })
    };
    let plain = ApiServer::plain(new_nodes);
    run(&format!("http://{}", plain.address()), json!({}), &json!({})).is_native();

    let authority = Authority::new();
    let server = ApiServer::tls(&authority, new_nodes);
    let url = format!("https://{}", server.address());
    let (certificate, key) = authority.issue("u");
    bench.write("user.pem", &certificate.pem());
    bench.write("user.key", &key.serialize_pem());
    let user = json!({"client-certificate": "user.pem", "client-key": "user.key"});
    run(&url, json!({"insecure-skip-tls-verify": true}), &user).is_native();
    run(&url, json!({}), &user).failed(&["No CA certificates were loaded", REMEDY]);
}
